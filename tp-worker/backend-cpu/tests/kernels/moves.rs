//! Rows, columns and cache cells that move unchanged.

use lockstep_backend::{AttentionShape, Batch, Holds, KvShape, Memory as _, Ops as _, Row};
use lockstep_backend_cpu::{CpuBackend, CpuKvCache, Isa};
use lockstep_types::{Dtype, KvCacheDtype};
use proptest::prelude::*;

use crate::machine::{Values, backend, bits, staged, tensor};

const HEADS: AttentionShape = AttentionShape::dense(4, 2, 8, 0.35);
const LAYERS: usize = 2;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn copied_rows_leave_the_others(
        n in 1usize..40,
        targets in 1usize..40,
        width in 1usize..300,
        copies in 0usize..50,
        is_large: bool,
        seed: u64,
    ) {
        let mut values = Values::new(seed);
        let mut backend = backend(Isa::detect(), Dtype::Float32, 2);
        // Enough for several threads, too.
        let targets = if is_large { targets + (1 << 19) / width } else { targets };
        let (from, to) = (values.floats(n * width), values.floats(targets * width));
        let x = tensor(&mut backend, &from, width);
        let mut out = tensor(&mut backend, &to, width);
        let mut expected = to;
        let (mut rows, mut places) = (Vec::new(), Vec::new());
        for _ in 0..copies {
            let (row, place) = (values.below(n), values.below(targets));
            expected[place * width..][..width].copy_from_slice(&from[row * width..][..width]);
            rows.push(row as u32);
            places.push(place as u32);
        }
        backend.copy_rows(&x, &rows, &mut out, &places);
        prop_assert_eq!(bits(out.values()), bits(&expected));
        prop_assert_eq!(out.rows(), targets);
    }

    #[test]
    fn placed_columns_leave_the_others(
        n in 0usize..200,
        widths in (0usize..50, 1usize..50, 0usize..50),
        threads in 1usize..4,
        seed: u64,
    ) {
        let (before, width, after) = widths;
        let total = before + width + after;
        let mut values = Values::new(seed);
        let mut backend = backend(Isa::detect(), Dtype::Float32, threads);
        let (columns, all) = (values.floats(n * width), values.floats(n * total));
        let x = tensor(&mut backend, &columns, width);
        let mut out = tensor(&mut backend, &all, total);
        backend.place_columns(&x, &mut out, before);
        let mut taken = tensor(&mut backend, &vec![0.0; n * width], width);
        backend.take_columns(&out, before, &mut taken);
        prop_assert_eq!(bits(taken.values()), bits(&columns));
        let mut expected = all;
        for (row, own) in expected.chunks_mut(total).zip(columns.chunks(width)) {
            row[before..before + width].copy_from_slice(own);
        }
        prop_assert_eq!(bits(out.values()), bits(&expected));
    }

    /// A cache after moves attends like one that was written in the final order.
    #[test]
    fn copied_cells_hold_the_bits_of_their_origin(
        cells in 1usize..40,
        moves in 0usize..30,
        page_size in prop::sample::select(vec![1usize, 3, 16, 64]),
        kv_dtype in prop::sample::select(vec![KvCacheDtype::Float32, KvCacheDtype::Bfloat16, KvCacheDtype::Int8]),
        seed: u64,
    ) {
        let mut values = Values::new(seed);
        let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
        let tokens = Tokens::new(cells, page_size, kv_dtype, &mut values);
        let mut holds: Vec<usize> = (0..cells).collect();
        let mut moved = tokens.cache(&mut backend, &holds);
        let random = (0..moves).map(|_| (values.below(cells) as u32, values.below(cells) as u32));
        let list: Vec<(u32, u32)> = random.collect();
        backend.copy_cells(&mut moved, &list);
        for (from, to) in &list {
            holds[*to as usize] = holds[*from as usize];
        }
        let mut written = tokens.cache(&mut backend, &holds);
        for layer in 0..LAYERS {
            let found = tokens.attend(&mut backend, &mut moved, layer);
            let expected = tokens.attend(&mut backend, &mut written, layer);
            prop_assert_eq!(bits(&found), bits(&expected));
        }
    }
}

/// Keys and values of some tokens in every layer, and a query behind them.
struct Tokens {
    page_size: usize,
    kv_dtype: KvCacheDtype,
    /// Per layer, `[cells + 1, qkv]`.
    layers: Vec<Vec<f32>>,
}

impl Tokens {
    fn new(cells: usize, page_size: usize, kv_dtype: KvCacheDtype, values: &mut Values) -> Self {
        let layer = |_| values.floats((cells + 1) * HEADS.qkv_width());
        Self {
            page_size,
            kv_dtype,
            layers: (0..LAYERS).map(layer).collect(),
        }
    }

    /// A cache whose cell `c` holds token `holds[c]`.
    fn cache(&self, backend: &mut CpuBackend, holds: &[usize]) -> CpuKvCache {
        let shape = KvShape {
            latent: None,
            group: 0,
            layers: LAYERS,
            kv_heads: HEADS.kv_heads,
            head_dim: HEADS.head_dim,
            pages: (holds.len() + 1).div_ceil(self.page_size),
            page_size: self.page_size,
            dtype: self.kv_dtype,
        };
        let mut cache = backend.kv_cache(&shape).unwrap();
        for layer in 0..LAYERS {
            let token = |token: &usize| &self.layers[layer][token * HEADS.qkv_width()..];
            let rows = holds.iter().map(|t| &token(t)[..HEADS.qkv_width()]);
            self.run(
                backend,
                &mut cache,
                layer,
                &rows.collect::<Vec<_>>().concat(),
                0,
            );
        }
        cache
    }

    /// The attention of the query behind all cells.
    fn attend(&self, backend: &mut CpuBackend, cache: &mut CpuKvCache, layer: usize) -> Vec<f32> {
        let qkv = &self.layers[layer];
        let behind = qkv.len() - HEADS.qkv_width();
        let cells = behind / HEADS.qkv_width();
        self.run(backend, cache, layer, &qkv[behind..], cells)
    }

    fn run(
        &self,
        backend: &mut CpuBackend,
        cache: &mut CpuKvCache,
        layer: usize,
        qkv: &[f32],
        start: usize,
    ) -> Vec<f32> {
        let count = qkv.len() / HEADS.qkv_width();
        let cells: Vec<u32> = (start..start + count).map(|cell| cell as u32).collect();
        let pages = (start + count).div_ceil(self.page_size) as u32;
        let row = Row {
            start: 0,
            q_len: count as u32,
            kv_len: start as u32,
            pages_start: 0,
            mask: None,
        };
        let batch = Batch {
            tokens: &cells,
            positions: &cells,
            cells: &cells,
            rows: &[row],
            pages: &(0..pages).collect::<Vec<_>>(),
            logit_tokens: &[],
            ..Batch::default()
        };
        let qkv = tensor(backend, qkv, HEADS.qkv_width());
        let mut out = backend
            .tensor(count, HEADS.out_width(), Holds::Operand)
            .unwrap();
        let inputs = staged(backend, &batch, self.page_size);
        backend.attention(cache, layer, &qkv, &HEADS, None, &inputs, &mut out);
        out.values().to_vec()
    }
}
