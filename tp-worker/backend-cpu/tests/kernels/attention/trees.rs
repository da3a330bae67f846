//! Masks over new tokens: trees of drafts and anything else.

use lockstep_backend::{Batch, Holds, KvShape, Memory as _, Ops as _, Row};
use lockstep_backend_cpu::{CpuBackend, CpuKvCache, Isa};
use lockstep_types::{Dtype, KvCacheDtype};
use proptest::prelude::*;

use super::world::World;
use super::{kv_dtypes, window};
use crate::machine::{Values, backend, bits, staged, tensor, variants};

/// One request in a cache of its own, with pages in reverse order.
struct Request<'a> {
    world: &'a World,
    cache: CpuKvCache,
    page_size: usize,
    pages: Vec<u32>,
    len: usize,
}

impl<'a> Request<'a> {
    fn new(
        backend: &mut CpuBackend,
        world: &'a World,
        page_size: usize,
        kv_dtype: KvCacheDtype,
        capacity: usize,
    ) -> Self {
        let pages = capacity.div_ceil(page_size);
        let shape = KvShape {
            latent: None,
            group: 0,
            layers: 1,
            kv_heads: world.shape.kv_heads,
            head_dim: world.shape.head_dim,
            pages,
            page_size,
            dtype: kv_dtype,
        };
        Self {
            world,
            cache: backend.kv_cache(&shape).unwrap(),
            page_size,
            pages: (0..pages as u32).rev().collect(),
            len: 0,
        }
    }

    /// Adds tokens with these rows of `qkv`, causal or masked.
    fn extend(&mut self, backend: &mut CpuBackend, qkv: &[f32], masks: Option<&[u64]>) -> Vec<f32> {
        let shape = self.world.shape;
        let count = qkv.len() / shape.qkv_width();
        let positions: Vec<u32> = (self.len..self.len + count).map(|p| p as u32).collect();
        let cell = |&position: &u32| {
            let (page, offset) = (
                position as usize / self.page_size,
                position as usize % self.page_size,
            );
            self.pages[page] * self.page_size as u32 + offset as u32
        };
        let cells: Vec<u32> = positions.iter().map(cell).collect();
        let row = Row {
            start: 0,
            q_len: count as u32,
            kv_len: self.len as u32,
            pages_start: 0,
            mask: masks.map(|_| 0),
        };
        let batch = Batch {
            tokens: &positions,
            positions: &positions,
            cells: &cells,
            rows: &[row],
            pages: &self.pages,
            logit_tokens: &[],
            masks: masks.unwrap_or(&[]),
            ..Batch::default()
        };
        let qkv = tensor(backend, qkv, shape.qkv_width());
        let mut out = backend
            .tensor(count, shape.out_width(), Holds::Operand)
            .unwrap();
        out.values_mut().fill(f32::NAN);
        let inputs = staged(backend, &batch, self.page_size);
        let (cache, sinks) = (&mut self.cache, self.world.sinks(backend));
        backend.attention(cache, 0, &qkv, &shape, sinks.as_ref(), &inputs, &mut out);
        self.len += count;
        out.values().to_vec()
    }
}

/// Bits of a mask, one row of words per query.
fn words(count: usize, visible: impl Fn(usize, usize) -> bool) -> Vec<u64> {
    let words = count.div_ceil(64);
    let mut masks = vec![0u64; words * count];
    for query in 0..count {
        for token in (0..count).filter(|&token| visible(query, token)) {
            masks[query * words + token / 64] |= 1 << (token % 64);
        }
    }
    masks
}

/// A random tree: the parent of each node among the nodes before it, or none.
fn tree(nodes: usize, values: &mut Values) -> Vec<Option<usize>> {
    (0..nodes)
        .map(|node| values.below(node + 1).checked_sub(1))
        .collect()
}

/// A node's ancestors and itself, eldest first.
fn path(parents: &[Option<usize>], node: usize) -> Vec<usize> {
    let mut path: Vec<usize> = std::iter::successors(Some(node), |&node| parents[node]).collect();
    path.reverse();
    path
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_path_of_a_tree_has_the_bits_of_the_chain(
        kv_heads in 1usize..3,
        group in 1usize..6,
        quarter in prop::sample::select(vec![1usize, 3, 8, 8, 13, 16, 16, 24]),
        prefix in prop::sample::select(vec![0usize, 1, 40, 63, 64, 100, 500, 511, 600]),
        nodes in prop::sample::select(vec![1usize, 7, 16, 40, 64, 65, 130]),
        page_size in prop::sample::select(vec![1usize, 5, 16, 64]),
        threads in 1usize..4,
        window in window(),
        seed: u64,
    ) {
        let world = World::new(kv_heads * group, kv_heads, 4 * quarter, &[prefix + nodes], seed)
            .within(window)
            .beside_sinks(seed.is_multiple_of(2));
        let (width, out_width) = (world.shape.qkv_width(), world.shape.out_width());
        let (cached, new) = world.requests[0].split_at(prefix * width);
        let mut values = Values::new(seed ^ 77);
        let parents = tree(nodes, &mut values);
        let masks = words(nodes, |query, token| path(&parents, query).contains(&token));
        for (isa, dtype) in variants() {
            for kv_dtype in kv_dtypes(dtype, 4 * quarter) {
                let mut backend = backend(isa, dtype, threads);
                let fresh = |backend: &mut CpuBackend| {
                    let capacity = prefix + nodes;
                    let mut request = Request::new(backend, &world, page_size, kv_dtype, capacity);
                    if prefix > 0 {
                        request.extend(backend, cached, None);
                    }
                    request
                };
                let tree = fresh(&mut backend).extend(&mut backend, new, Some(&masks));
                for node in [nodes - 1, values.below(nodes), values.below(nodes)] {
                    let path = path(&parents, node);
                    let rows = path.iter().flat_map(|&node| &new[node * width..(node + 1) * width]);
                    let rows: Vec<f32> = rows.copied().collect();
                    let chain = fresh(&mut backend).extend(&mut backend, &rows, None);
                    for (index, &node) in path.iter().enumerate() {
                        prop_assert_eq!(
                            bits(&tree[node * out_width..(node + 1) * out_width]),
                            bits(&chain[index * out_width..(index + 1) * out_width]),
                            "{} {:?} {:?} node {}", isa, dtype, kv_dtype, node
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn any_mask_is_that_of_plain_arithmetic(
        prefix in 0usize..90,
        count in 1usize..100,
        density in 1usize..4,
        window in window(),
        seed: u64,
    ) {
        let world = World::new(4, 2, 16, &[prefix + count], seed).within(window);
        let width = world.shape.qkv_width();
        let (cached, new) = world.requests[0].split_at(prefix * width);
        let mut values = Values::new(seed ^ 5);
        let seen: Vec<bool> = (0..count * count).map(|_| values.below(4) < density).collect();
        let masks = words(count, |query, token| seen[query * count + token]);
        let expected = reference(&world, prefix, |query, token| seen[query * count + token]);
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let mut request = Request::new(&mut backend, &world, 16, KvCacheDtype::Float32, prefix + count);
            if prefix > 0 {
                request.extend(&mut backend, cached, None);
            }
            let found = request.extend(&mut backend, new, Some(&masks));
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let error = (f64::from(*found) - expected).abs();
                prop_assert!(error <= 2e-5, "{isa} value {index}: {found}, not {expected}");
            }
        }
    }
}

/// The new tokens' outputs in f64; zeros where a query sees nothing.
fn reference(world: &World, prefix: usize, seen: impl Fn(usize, usize) -> bool) -> Vec<f64> {
    let shape = world.shape;
    let (width, dim) = (shape.qkv_width(), shape.head_dim);
    let at = |token: usize, column: usize| f64::from(world.requests[0][token * width + column]);
    let mut out = Vec::new();
    for query in 0..world.length(0) - prefix {
        let visible =
            (0..world.length(0)).filter(|&token| token < prefix || seen(query, token - prefix));
        let visible: Vec<usize> = visible.collect();
        let visible = &visible[shape.visible(visible.len())];
        for head in 0..shape.heads {
            let key = (shape.heads + head / (shape.heads / shape.kv_heads)) * dim;
            let weight = |&token: &usize| -> f64 {
                let dot = (0..dim).map(|d| at(prefix + query, head * dim + d) * at(token, key + d));
                (dot.sum::<f64>() * f64::from(shape.scale)).exp()
            };
            let weights: Vec<f64> = visible.iter().map(weight).collect();
            let sum: f64 = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            for d in 0..dim {
                let value = key + shape.kv_heads * dim + d;
                let terms = visible.iter().zip(&weights);
                out.push(terms.map(|(&token, w)| w * at(token, value)).sum::<f64>() / sum);
            }
        }
    }
    out
}

#[test]
fn a_causal_mask_is_no_mask() {
    let masks = words(150, |query, token| token <= query);
    let windows = [None, Some(9), Some(70)];
    for ((isa, dtype), window) in variants().flat_map(|way| windows.map(|window| (way, window))) {
        let world = World::new(6, 2, 32, &[150], 3).within(window);
        let world = world.beside_sinks(window.is_some());
        let mut backend = backend(isa, dtype, 2);
        let mut run = |masks| {
            let mut request = Request::new(&mut backend, &world, 16, KvCacheDtype::Bfloat16, 150);
            bits(&request.extend(&mut backend, &world.requests[0], masks))
        };
        let causal = run(None);
        assert!(run(Some(&masks)) == causal, "{isa} {dtype:?} {window:?}");
    }
}
