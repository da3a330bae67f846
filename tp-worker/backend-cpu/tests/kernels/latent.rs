//! Latent attention against keys and values of each head in f64, and against itself in other
//! batches.

use lockstep_backend::testing::LatentText;
use lockstep_backend::{
    AttendLatent, Batch, Holds, KvShape, LatentShape, LatentSpace, Memory as _, Ops as _,
    RopeTable, Row,
};
use lockstep_backend_cpu::{CpuBackend, CpuKvCache, Isa};
use lockstep_types::{Dtype, KvCacheDtype};

use crate::machine::{Values, backend, bits, matrix, staged, tensor, variants};

/// Shapes with columns that fill units of kernels and with some that don't; 40 heads are taken in
/// several parts.
const SHAPES: [LatentShape; 3] = [
    shape(4, 24, 32, 64, 20),
    shape(3, 10, 12, 40, 18),
    shape(40, 8, 64, 512, 8),
];
const EPS: f32 = 1e-3;

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
    fn new(shape: LatentShape, tokens: usize) -> Self {
        let mut values = Values::new(tokens as u64);
        let size = (shape.latent as f32).sqrt().recip();
        let mut weights = |len| -> Vec<f32> {
            let values = values.floats(len);
            values.iter().map(|x| 2.0 * size * x).collect()
        };
        let heads = (0..shape.heads)
            .map(|_| [shape.nope, shape.value].map(|width| weights(width * shape.latent)))
            .collect();
        let half = shape.rotated / 2;
        let angles = values.floats(tokens * half);
        let text = LatentText {
            shape,
            eps: EPS,
            query: values.floats(tokens * shape.query_width()),
            cell: values.floats(tokens * shape.cell()),
            norm: values
                .floats(shape.latent)
                .iter()
                .map(|x| 1.0 + x / 4.0)
                .collect(),
            heads,
            rope: RopeTable {
                half,
                cos: angles.iter().map(|x| (4.0 * x).cos()).collect(),
                sin: angles.iter().map(|x| (4.0 * x).sin()).collect(),
                queries: (0..tokens).map(|at| 1.0 + at as f32 / 100.0).collect(),
            },
        };
        Self { text }
    }

    /// Attends in chunks of these lengths, over pages of `page_size` tokens.
    fn run(
        &self,
        backend: &mut CpuBackend,
        dtype: KvCacheDtype,
        page_size: usize,
        chunks: impl IntoIterator<Item = usize>,
    ) -> Vec<f32> {
        let pages = self.text.tokens().div_ceil(page_size);
        let shape = KvShape {
            group: 0,
            layers: 2,
            kv_heads: 1,
            head_dim: self.text.shape.cell(),
            latent: Some(self.text.shape.latent),
            pages: pages + 1,
            page_size,
            dtype,
        };
        let mut cache = backend.kv_cache(&shape).unwrap();
        let mut out = Vec::new();
        let mut len = 0;
        for chunk in chunks {
            out.extend(self.extend(backend, &mut cache, page_size, len, chunk));
            len += chunk;
        }
        assert_eq!(len, self.text.tokens());
        out
    }

    fn extend(
        &self,
        backend: &mut CpuBackend,
        cache: &mut CpuKvCache,
        page_size: usize,
        len: usize,
        count: usize,
    ) -> Vec<f32> {
        let (shape, end) = (&self.text.shape, len + count);
        let pages: Vec<u32> = (1..=self.text.tokens().div_ceil(page_size) as u32)
            .rev()
            .collect();
        let positions: Vec<u32> = (len as u32..end as u32).collect();
        let cell = |position: &u32| {
            let (page, offset) = (
                *position as usize / page_size,
                *position as usize % page_size,
            );
            pages[page] * page_size as u32 + offset as u32
        };
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
        let inputs = staged(backend, &batch, page_size);
        let part = |all: &[f32], width| all[len * width..end * width].to_vec();
        let (wide, narrow) = (shape.query_width(), shape.cell());
        let mut query = tensor(backend, &part(&self.text.query, wide), wide);
        let mut cell = tensor(backend, &part(&self.text.cell, narrow), narrow);
        let norm = backend.load_vector(&self.text.norm).unwrap();
        let rope = backend.load_rope(self.text.rope.clone()).unwrap();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for [key, value] in &self.text.heads {
            keys.push(matrix(backend, key, shape.nope));
            values.push(matrix(backend, value, shape.latent));
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
        let mut room = |width| {
            let mut room = backend.tensor(count, width, Holds::Sum).unwrap();
            room.values_mut().fill(f32::NAN);
            room
        };
        let (mut qkv, mut means) = (room(absorbed.qkv_width()), room(absorbed.out_width()));
        let mut out = room(shape.heads * shape.value);
        let space = LatentSpace {
            qkv: &mut qkv,
            means: &mut means,
        };
        let (query, cell) = (&mut query, &mut cell);
        backend
            .attend_latent(cache, 1, query, cell, &op, space, &inputs, &mut out)
            .unwrap();
        out.values().to_vec()
    }
}

/// Absorbed products are those of whole keys and values. 70 tokens fill several blocks of rows
/// and of positions.
#[test]
fn absorbed_products_are_those_of_whole_keys_and_values() {
    for shape in SHAPES {
        let world = World::new(shape, 70);
        let exact = world.text.exact();
        for (isa, dtype) in variants() {
            let mut backend = backend(isa, dtype, 2);
            let (cached, limit) = match dtype {
                Dtype::Float32 => (KvCacheDtype::Float32, 2e-5),
                Dtype::Bfloat16 => (KvCacheDtype::Bfloat16, 2e-2),
            };
            for chunks in [vec![70], vec![1, 7, 62], [vec![66], vec![1; 4]].concat()] {
                let found = world.run(&mut backend, cached, 16, chunks);
                let errors = found.iter().zip(&exact);
                let error = errors
                    .map(|(a, b)| (f64::from(*a) - b).abs())
                    .fold(0.0, f64::max);
                assert!(error < limit, "{isa} {dtype:?} {shape:?}: {error}");
            }
        }
    }
}

/// A token's bits depend neither on chunks, nor on pages, nor on threads.
#[test]
fn a_token_does_not_depend_on_its_company() {
    for shape in SHAPES {
        let world = World::new(shape, 67);
        for (isa, dtype) in variants() {
            for cached in [KvCacheDtype::Float32, KvCacheDtype::Bfloat16] {
                let (mut one, mut three) = (backend(isa, dtype, 1), backend(isa, dtype, 3));
                let whole = bits(&world.run(&mut one, cached, 64, [67]));
                for (page_size, chunks) in [(1, vec![5, 60, 2]), (16, vec![64, 1, 1, 1])] {
                    let found = bits(&world.run(&mut three, cached, page_size, chunks));
                    assert!(found == whole, "{isa} {dtype:?} {cached:?} {shape:?}");
                }
            }
        }
    }
}

#[test]
fn caches_of_codes_are_refused_by_name() {
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
    let shape = KvShape {
        group: 0,
        layers: 1,
        kv_heads: 1,
        head_dim: 64,
        latent: Some(48),
        pages: 2,
        page_size: 4,
        dtype: KvCacheDtype::Int8,
    };
    let error = backend.kv_cache(&shape).err().unwrap().to_string();
    assert!(error.contains("latents"), "{error}");
    let plain = KvShape {
        latent: None,
        ..shape
    };
    assert!(backend.kv_cache(&plain).is_ok());
}
