//! Passes that are larger than their batch.

use lockstep_backend::{
    AttentionShape, Backend, Batch, Holds, InputLimits, KvShape, PassKey, Row, Rows,
};
use lockstep_backend_cpu::{CpuBackend, CpuInputs, Isa};
use lockstep_types::{Dtype, KvCacheDtype};

use crate::machine::{Values, backend, bits, matrix, tensor, variants};

const HEADS: AttentionShape = AttentionShape {
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    scale: 0.35,
};
const PAGE: usize = 4;

/// A batch in a pass of `padding` more tokens and wanted rows.
fn staged(backend: &mut CpuBackend, batch: &Batch<'_>, padding: usize) -> CpuInputs {
    let key = batch.key();
    let key = PassKey {
        tokens: key.tokens + padding,
        wanted: key.wanted + padding,
        ..key
    };
    let limits = InputLimits {
        tokens: key.tokens,
        ..InputLimits::of(batch, PAGE)
    };
    let mut inputs = backend.inputs(&limits).unwrap();
    backend.stage(batch, key, &mut inputs).unwrap();
    inputs
}

/// What three chunks of a request attend to, and their last rows once more.
fn attended(isa: Isa, dtype: Dtype, padding: usize) -> Vec<u32> {
    let mut backend = backend(isa, dtype, 2);
    let shape = KvShape {
        layers: 1,
        kv_heads: HEADS.kv_heads,
        head_dim: HEADS.head_dim,
        pages: 3,
        page_size: PAGE,
        dtype: KvCacheDtype::Bfloat16,
    };
    let mut cache = backend.kv_cache(&shape).unwrap();
    let mut values = Values::new(5);
    let (width, out_width) = (HEADS.qkv_width(), HEADS.out_width());
    let mut all = Vec::new();
    for chunk in [0..3u32, 3..8, 8..9] {
        let row = Row {
            start: 0,
            q_len: chunk.len() as u32,
            kv_len: chunk.start,
            pages_start: 0,
            mask: None,
        };
        let positions: Vec<u32> = chunk.collect();
        let count = positions.len();
        let batch = Batch {
            tokens: &positions,
            positions: &positions,
            cells: &positions,
            rows: &[row],
            pages: &[0, 1, 2],
            logit_tokens: &[count as u32 - 1],
            masks: &[],
        };
        let inputs = staged(&mut backend, &batch, padding);
        let mut qkv = values.floats(count * width);
        qkv.resize((count + padding) * width, f32::NAN);
        let qkv = tensor(&mut backend, &qkv, width);
        let mut out = backend
            .tensor(count + padding, out_width, Holds::Operand)
            .unwrap();
        backend.attention(&mut cache, 0, &qkv, &HEADS, &inputs, &mut out);
        all.extend(bits(&out.values()[..count * out_width]));
        let mut last = backend.tensor(1, out_width, Holds::Operand).unwrap();
        backend.gather_rows(&out, Rows::Wanted(&inputs, 0..1), &mut last);
        all.extend(bits(last.values()));
    }
    all
}

#[test]
fn padding_changes_no_bit() {
    for (isa, dtype) in variants() {
        let plain = attended(isa, dtype, 0);
        for padding in [1, 70] {
            assert!(
                attended(isa, dtype, padding) == plain,
                "{isa} {dtype:?} {padding}"
            );
        }
    }
}

#[test]
fn padding_embeds_as_zeros() {
    let mut backend = backend(Isa::detect(), Dtype::Float32, 1);
    let table = matrix(&mut backend, &[1.0; 6], 2);
    let batch = Batch {
        tokens: &[2],
        ..Batch::default()
    };
    let inputs = staged(&mut backend, &batch, 2);
    let mut out = tensor(&mut backend, &[f32::NAN; 6], 2);
    backend.embed(&table, 0, &inputs, &mut out);
    assert_eq!(out.values(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
#[should_panic(expected = "is staged where")]
fn a_batch_stays_within_the_limits() {
    let mut backend = backend(Isa::detect(), Dtype::Float32, 1);
    let one = Batch {
        tokens: &[1],
        ..Batch::default()
    };
    let two = Batch {
        tokens: &[1, 2],
        ..one
    };
    let mut inputs = staged(&mut backend, &one, 0);
    let _ = backend.stage(&two, two.key(), &mut inputs);
}
