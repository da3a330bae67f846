//! Latent attention against keys and values of each head in f64, and against itself in other
//! chunks.

use half::bf16;
use lockstep_backend::testing::LatentText;
use lockstep_backend::{
    AttendLatent, Batch, Holds, KvShape, LatentShape, LatentSpace, Memory as _, Ops as _,
    RopeTable, Row, WeightFormat,
};
use lockstep_backend_cuda::{CudaBackend, CudaMatrix, PagedCache};
use lockstep_types::{Dtype, KvCacheDtype};

use crate::support::{gpu, host_matrix, matrix, noise, read, staged, sums};

const EPS: f32 = 1e-3;
const PAGE_SIZE: usize = 4;
/// Tokens of the text: more than the largest tile of a product has.
const TOKENS: usize = 70;

/// Columns that fill units of kernels, and columns that don't.
const SHAPES: [LatentShape; 2] = [shape(4, 24, 16, 48, 16), shape(3, 10, 12, 36, 18)];

const fn shape(
    heads: usize,
    nope: usize,
    rotated: usize,
    latent: usize,
    value: usize,
) -> LatentShape {
    LatentShape {
        heads,
        nope,
        rotated,
        latent,
        value,
        scale: 0.3,
    }
}

/// Text of one request, to run and to compare with.
struct World {
    text: LatentText,
}

impl World {
    fn new(shape: LatentShape) -> Self {
        let size = (shape.latent as f32).sqrt().recip();
        // What the device rounds to bf16 is so already.
        let draw = |seed, len, size: f32| -> Vec<f32> {
            let values = noise(seed, len).into_iter();
            values.map(|x| bf16::from_f32(size * x).to_f32()).collect()
        };
        let head = |head: usize| {
            let widths = [(1, shape.nope), (2, shape.value)];
            widths.map(|(of, width)| draw(10 * of + head as u64, width * shape.latent, size))
        };
        let half = shape.rotated / 2;
        let angles = noise(3, TOKENS * half);
        let norm = noise(4, shape.latent);
        let text = LatentText {
            shape,
            eps: EPS,
            query: draw(1, TOKENS * shape.query_width(), 1.0),
            cell: draw(2, TOKENS * shape.cell(), 1.0),
            norm: norm.into_iter().map(|x| 1.0 + x / 8.0).collect(),
            heads: (0..shape.heads).map(head).collect(),
            rope: RopeTable {
                half,
                cos: angles.iter().map(|x| (2.0 * x).cos()).collect(),
                sin: angles.iter().map(|x| (2.0 * x).sin()).collect(),
                queries: (0..TOKENS).map(|at| 1.0 + at as f32 / 100.0).collect(),
            },
        };
        Self { text }
    }

    /// Attends in chunks of these lengths.
    fn run(&self, gpu: &mut CudaBackend, dtype: KvCacheDtype, chunks: &[usize]) -> Vec<f32> {
        let shape = KvShape {
            group: 0,
            layers: 2,
            kv_heads: 1,
            head_dim: self.text.shape.cell(),
            latent: Some(self.text.shape.latent),
            pages: TOKENS.div_ceil(PAGE_SIZE) + 1,
            page_size: PAGE_SIZE,
            dtype,
        };
        let mut cache = gpu.kv_cache(&shape).unwrap();
        let (mut out, mut len) = (Vec::new(), 0);
        for chunk in chunks {
            out.extend(self.extend(gpu, &mut cache, len, *chunk));
            len += chunk;
        }
        assert_eq!(len, TOKENS);
        out
    }

    fn extend(
        &self,
        gpu: &mut CudaBackend,
        cache: &mut PagedCache,
        len: usize,
        count: usize,
    ) -> Vec<f32> {
        let (shape, end) = (&self.text.shape, len + count);
        let pages: Vec<u32> = (1..=TOKENS.div_ceil(PAGE_SIZE) as u32).rev().collect();
        let positions: Vec<u32> = (len as u32..end as u32).collect();
        let size = PAGE_SIZE as u32;
        let cell = |at: &u32| pages[(at / size) as usize] * size + at % size;
        let cells: Vec<u32> = positions.iter().map(cell).collect();
        let row = Row {
            start: 0,
            q_len: count as u32,
            kv_len: len as u32,
            pages_start: 0,
            mask: None,
        };
        let batch = Batch {
            tokens: &positions,
            positions: &positions,
            cells: &cells,
            rows: &[row],
            pages: &pages,
            ..Batch::default()
        };
        let inputs = staged(gpu, &batch, PAGE_SIZE);
        let part = |all: &[f32], width| all[len * width..end * width].to_vec();
        let (wide, narrow) = (shape.query_width(), shape.cell());
        let mut query = sums(gpu, &part(&self.text.query, wide), wide);
        let mut cell = sums(gpu, &part(&self.text.cell, narrow), narrow);
        let norm = gpu.load_vector(&self.text.norm).unwrap();
        let rope = gpu.load_rope(self.text.rope.clone()).unwrap();
        let mut load = |values: &[f32], cols| -> CudaMatrix {
            let bytes = matrix(values, cols);
            let host = host_matrix(&bytes, cols);
            gpu.load_matrix(&host, WeightFormat::Float).unwrap()
        };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for [key, value] in &self.text.heads {
            keys.push(load(key, shape.nope));
            values.push(load(value, shape.latent));
        }
        let op = AttendLatent {
            shape,
            norm: &norm,
            eps: EPS,
            rope: &rope,
            keys: &keys,
            values: &values,
        };
        let absorbed = shape.absorbed();
        let mut room = |width, holds| gpu.tensor(count, width, holds).unwrap();
        let mut qkv = room(absorbed.qkv_width(), Holds::Sum);
        let mut means = room(absorbed.out_width(), Holds::Operand);
        let mut out = room(shape.heads * shape.value, Holds::Operand);
        let space = LatentSpace {
            qkv: &mut qkv,
            means: &mut means,
        };
        let (query, cell) = (&mut query, &mut cell);
        gpu.attend_latent(cache, 1, query, cell, &op, space, &inputs, &mut out)
            .unwrap();
        read(gpu, &out)
    }
}

/// Tiles of 8, 16, 32 and 64 tokens, and of more than a block takes.
#[test]
fn absorbed_products_are_those_of_whole_keys_and_values() {
    for shape in SHAPES {
        let world = World::new(shape);
        let exact = world.text.exact();
        for (dtype, cached, limit) in [
            (Dtype::Float32, KvCacheDtype::Float32, 2e-5),
            (Dtype::Bfloat16, KvCacheDtype::Bfloat16, 4e-2),
        ] {
            let mut gpu = gpu(dtype);
            let whole = world.run(&mut gpu, cached, &[TOKENS]);
            let errors = whole.iter().zip(&exact);
            let error = errors
                .map(|(a, b)| (f64::from(*a) - b).abs())
                .fold(0.0, f64::max);
            assert!(error < limit, "{dtype:?} {shape:?}: {error}");
            let found = world.run(&mut gpu, cached, &[1, 14, 31, 8, 16]);
            assert!(
                found == whole,
                "{dtype:?} {shape:?}: chunks have other bits"
            );
        }
    }
}
