//! Attention as one operation, compared with the four operations that it consists of.

use lockstep_backend::{
    Attend, AttentionShape, Batch, Holds, KvShape, Linear, Memory as _, Ops as _, RopeTable, Row,
    WeightFormat,
};
use lockstep_fake_cuda::calls;
use lockstep_types::{Dtype, KvCacheDtype};

use crate::support::{DTYPES, gpu, host_matrix, matrix, noise, read, staged, sums};

const SHAPE: AttentionShape = AttentionShape {
    sinks: true,
    ..AttentionShape::dense(4, 2, 16, 0.25)
};

/// Two chunks of a prompt, and a tree behind them.
#[test]
fn attention_is_what_its_parts_are() {
    for (dtype, cached) in DTYPES
        .into_iter()
        .zip([KvCacheDtype::Bfloat16, KvCacheDtype::Float32])
    {
        let found = [Way::WithProjections, Way::AtOnce, Way::Apart];
        let found = found.map(|way| texts(dtype, cached, way));
        assert!(found[0] == found[1], "{dtype:?} over {cached:?}");
        assert!(found[1] == found[2], "{dtype:?} over {cached:?}");
        assert!(found[0].iter().flatten().any(|value| *value != 0.0));
    }
}

/// Inputs of the projections: enough for sums in several parts on the fake device.
const INPUTS: usize = 800;

/// Ways to run the operations of an attention block.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Projections and attention are one operation.
    WithProjections,
    /// Attention is one operation behind the projections.
    AtOnce,
    /// Norms, rotation and attention are operations of their own.
    Apart,
}

fn texts(dtype: Dtype, cached: KvCacheDtype, way: Way) -> Vec<Vec<f32>> {
    let mut gpu = gpu(dtype);
    let angles = noise(1, 40 * 8);
    let rope = RopeTable {
        queries: Vec::new(),
        half: 8,
        cos: angles.iter().map(|angle| angle.cos()).collect(),
        sin: angles.iter().map(|angle| angle.sin()).collect(),
    };
    let rope = gpu.load_rope(rope).unwrap();
    let q_norm = gpu.load_vector(&noise(2, 16)).unwrap();
    let k_norm = gpu.load_vector(&noise(3, 16)).unwrap();
    let v_norm = gpu.load_vector(&noise(4, 16)).unwrap();
    let sinks = gpu.load_vector(&noise(9, SHAPE.heads)).unwrap();
    let sinks = Some(&sinks);
    let width = SHAPE.qkv_width();
    let weights = matrix(&noise(10, width * INPUTS), INPUTS);
    let weights = host_matrix(&weights, INPUTS);
    let weights = gpu.load_matrix(&weights, WeightFormat::Float).unwrap();
    let bias = gpu.load_vector(&noise(11, width)).unwrap();
    let w = Linear {
        weight: &weights,
        bias: Some(&bias),
    };
    let shape = KvShape {
        latent: None,
        group: 0,
        layers: 2,
        kv_heads: 2,
        head_dim: 16,
        pages: 8,
        page_size: 4,
        dtype: cached,
    };
    let mut cache = gpu.kv_cache(&shape).unwrap();
    let chunk = |start: u32, len: u32, mask| Row {
        start: 0,
        q_len: len,
        kv_len: start,
        pages_start: 1,
        mask,
    };
    let rows = [chunk(0, 9, None), chunk(9, 11, None), chunk(20, 4, Some(0))];
    // The first page belongs to no request; the others are in no order.
    let pages = [0, 7, 3, 5, 1, 6, 2];
    let mut all = Vec::new();
    for (turn, row) in (4..).zip(rows) {
        let positions: Vec<u32> = (row.kv_len..row.kv_len + row.q_len).collect();
        let cell = |position: &u32| pages[1 + *position as usize / 4] * 4 + position % 4;
        let cells: Vec<u32> = positions.iter().map(cell).collect();
        let batch = Batch {
            tokens: &positions,
            positions: &positions,
            cells: &cells,
            rows: &[row],
            pages: &pages,
            logit_tokens: &[],
            masks: &[1, 3, 5, 11],
            ..Batch::default()
        };
        let inputs = staged(&mut gpu, &batch, 4);
        let rows = positions.len();
        let x = sums(&mut gpu, &noise(turn, rows * INPUTS), INPUTS);
        let mut space = gpu.tensor(rows, INPUTS, Holds::Operand).unwrap();
        let x = gpu.as_operand(&x, &mut space);
        let mut qkv = gpu.tensor(rows, width, Holds::Sum).unwrap();
        let out = gpu.tensor(positions.len(), SHAPE.out_width(), Holds::Operand);
        let mut out = out.unwrap();
        let op = Attend {
            shape: &SHAPE,
            q_norm: Some(&q_norm),
            k_norm: Some(&k_norm),
            v_norm: Some(&v_norm),
            eps: 1e-6,
            rope: &rope,
            sinks,
            next: None,
        };
        let before = calls(c"cuLaunchKernelEx");
        if way == Way::WithProjections {
            gpu.matmul_attend(x, w, &mut cache, 1, &mut qkv, &op, &inputs, &mut out);
        } else {
            gpu.matmul(x, w, &mut qkv);
        }
        if way == Way::AtOnce {
            gpu.attend(&mut cache, 1, &mut qkv, &op, &inputs, &mut out);
        }
        // One for the sums in parts that a product leaves, if nobody else adds them.
        let launches = 5 + u64::from(way == Way::AtOnce);
        if let (Some(before), Some(now), true) =
            (before, calls(c"cuLaunchKernelEx"), way != Way::Apart)
        {
            assert_eq!(now - before, launches, "row {row:?}");
        }
        if way == Way::Apart {
            gpu.head_norm(&mut qkv, &SHAPE, 0..4, &q_norm, 1e-6);
            gpu.head_norm(&mut qkv, &SHAPE, 4..6, &k_norm, 1e-6);
            gpu.head_norm(&mut qkv, &SHAPE, 6..8, &v_norm, 1e-6);
            gpu.rope(&mut qkv, &SHAPE, &rope, &inputs);
            gpu.attention(&mut cache, 1, &qkv, &SHAPE, sinks, &inputs, &mut out);
        }
        all.push(read(&mut gpu, &out));
    }
    all
}
