//! Paged attention against contiguous attention in f64.

use lockstep_backend::{AttentionShape, Backend, Batch, KvDType, KvShape, Row};
use lockstep_backend_cpu::{Compute, CpuBackend, CpuKvCache, Isa};
use proptest::prelude::*;

use crate::machine::{Values, backend, bits, rounded, tensor, variants};

/// Requests with all their tokens' queries, keys and values.
struct World {
    shape: AttentionShape,
    /// Per request, `[tokens, qkv]`.
    requests: Vec<Vec<f32>>,
}

impl World {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, lengths: &[usize], seed: u64) -> Self {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale,
        };
        let mut values = Values::new(seed);
        let request = |&length: &usize| {
            let floats = values.floats(length * shape.qkv_width());
            floats.iter().map(|x| x * 3.0).collect()
        };
        Self {
            shape,
            requests: lengths.iter().map(request).collect(),
        }
    }

    fn length(&self, request: usize) -> usize {
        self.requests[request].len() / self.shape.qkv_width()
    }

    /// One request in f64, with keys and values as the cache rounds them.
    fn reference(&self, request: usize, dtype: Compute) -> Vec<f64> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale,
        } = self.shape;
        let (width, tokens) = (self.shape.qkv_width(), self.length(request));
        let at = |token: usize, column: usize| {
            rounded(self.requests[request][token * width + column], dtype)
        };
        let mut out = Vec::new();
        for token in 0..tokens {
            for head in 0..heads {
                let key = (heads + head / (heads / kv_heads)) * head_dim;
                let value = key + kv_heads * head_dim;
                let score = |past: usize| -> f64 {
                    let dot: f64 = (0..head_dim)
                        .map(|d| at(token, head * head_dim + d) * at(past, key + d))
                        .sum();
                    dot * f64::from(scale)
                };
                let scores: Vec<f64> = (0..=token).map(score).collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..head_dim {
                    let mean: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(past, w)| w * at(past, value + d))
                        .sum();
                    out.push(mean / sum);
                }
            }
        }
        out
    }
}

/// How a world is run: a cache with shuffled pages, and steps that bring some
/// tokens of some requests each.
struct Run {
    page_size: usize,
    kv_dtype: KvDType,
    seed: u64,
}

impl Run {
    fn cache(&self, backend: &mut CpuBackend, world: &World) -> (CpuKvCache, Vec<Vec<u32>>) {
        let pages_of = |request| world.length(request).div_ceil(self.page_size);
        let needed: usize = (0..world.requests.len()).map(pages_of).sum();
        let mut free: Vec<u32> = (0..needed as u32 + 5).collect();
        let mut values = Values::new(self.seed);
        for i in (1..free.len()).rev() {
            free.swap(i, values.below(i + 1));
        }
        let tables = (0..world.requests.len()).map(|r| free.split_off(free.len() - pages_of(r)));
        let tables = tables.collect();
        let shape = KvShape {
            layers: 2,
            kv_heads: world.shape.kv_heads,
            head_dim: world.shape.head_dim,
            pages: needed + 5,
            page_size: self.page_size,
            dtype: self.kv_dtype,
        };
        (backend.kv_cache(&shape).unwrap(), tables)
    }

    /// Runs every step, a list of (request, tokens to bring); returns each
    /// request's outputs in order.
    fn outputs(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        steps: &[Vec<(usize, usize)>],
    ) -> Vec<Vec<f32>> {
        let (mut cache, tables) = self.cache(backend, world);
        let mut done = vec![0; world.requests.len()];
        let mut outputs = vec![Vec::new(); world.requests.len()];
        for step in steps {
            self.step(
                backend,
                world,
                &mut cache,
                &tables,
                step,
                &mut done,
                &mut outputs,
            );
        }
        outputs
    }

    #[expect(clippy::too_many_arguments, reason = "the state of a run")]
    fn step(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        cache: &mut CpuKvCache,
        tables: &[Vec<u32>],
        step: &[(usize, usize)],
        done: &mut [usize],
        outputs: &mut [Vec<f32>],
    ) {
        let width = world.shape.qkv_width();
        let (mut rows, mut pages, mut cells, mut positions) = (vec![], vec![], vec![], vec![]);
        let mut qkv = Vec::new();
        for &(request, count) in step {
            let from = done[request];
            let used = (from + count).div_ceil(self.page_size);
            rows.push(Row {
                start: cells.len() as u32,
                q_len: count as u32,
                kv_len: from as u32,
                pages_start: pages.len() as u32,
            });
            pages.extend_from_slice(&tables[request][..used]);
            for token in from..from + count {
                let page = tables[request][token / self.page_size] as usize;
                cells.push((page * self.page_size + token % self.page_size) as u32);
                positions.push(token as u32);
            }
            qkv.extend_from_slice(&world.requests[request][from * width..(from + count) * width]);
            done[request] += count;
        }
        let tokens = vec![0; cells.len()];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            cells: &cells,
            rows: &rows,
            pages: &pages,
            logit_tokens: &[],
        };
        let qkv = tensor(backend, &qkv, width);
        let mut out = backend
            .tensor(cells.len(), world.shape.out_width())
            .unwrap();
        out.values_mut().fill(f32::NAN);
        backend.attention(cache, 1, &qkv, &world.shape, &batch, &mut out);
        let mut at = 0;
        for &(request, count) in step {
            let end = at + count * world.shape.out_width();
            outputs[request].extend_from_slice(&out.values()[at..end]);
            at = end;
        }
    }
}

/// Every request whole, all in one step.
fn whole(world: &World) -> Vec<Vec<(usize, usize)>> {
    vec![
        (0..world.requests.len())
            .map(|r| (r, world.length(r)))
            .collect(),
    ]
}

/// Requests one after another, token by token.
fn one_by_one(world: &World) -> Vec<Vec<(usize, usize)>> {
    let tokens = |r: usize| (0..world.length(r)).map(move |_| vec![(r, 1)]);
    (0..world.requests.len()).flat_map(tokens).collect()
}

/// Random chunks of random requests.
fn ragged(world: &World, seed: u64) -> Vec<Vec<(usize, usize)>> {
    let mut values = Values::new(seed);
    let mut left: Vec<usize> = (0..world.requests.len()).map(|r| world.length(r)).collect();
    let mut steps = Vec::new();
    while left.iter().any(|&left| left > 0) {
        let mut step = Vec::new();
        for (request, left) in left.iter_mut().enumerate() {
            if *left > 0 && values.below(3) > 0 {
                let count = 1 + values.below((*left).min(70));
                *left -= count;
                step.push((request, count));
            }
        }
        if !step.is_empty() {
            steps.push(step);
        }
    }
    steps
}

fn check(world: &World, outputs: &[Vec<f32>], dtype: Compute, what: &str) {
    // Weights are rounded to bf16 before the weighted sum.
    let limit = if dtype == Compute::Bf16 { 2e-2 } else { 2e-5 };
    for (request, output) in outputs.iter().enumerate() {
        let reference = world.reference(request, dtype);
        assert_eq!(reference.len(), output.len());
        for (i, (&got, &exact)) in output.iter().zip(&reference).enumerate() {
            let error = (f64::from(got) - exact).abs();
            assert!(
                error <= limit,
                "{what}: request {request} value {i}: {got}, not {exact}"
            );
        }
    }
}

fn kv_dtype(dtype: Compute) -> KvDType {
    match dtype {
        Compute::Bf16 => KvDType::Bf16,
        Compute::F32 => KvDType::F32,
    }
}

#[test]
fn attention_is_that_of_plain_arithmetic() {
    let worlds = [
        World::new(1, 1, 2, &[1], 1),
        World::new(4, 1, 64, &[130, 1, 65], 2),
        World::new(6, 2, 48, &[64, 63, 66], 3),
        World::new(8, 8, 34, &[20, 70], 4),
        World::new(16, 1, 128, &[90], 5),
    ];
    for world in &worlds {
        for (isa, dtype) in variants() {
            let mut backend = backend(isa, dtype, 2);
            for page_size in [1, 16, 64] {
                let run = Run {
                    page_size,
                    kv_dtype: kv_dtype(dtype),
                    seed: 7,
                };
                let outputs = run.outputs(&mut backend, world, &whole(world));
                check(
                    world,
                    &outputs,
                    dtype,
                    &format!("{isa} {dtype:?} page {page_size}"),
                );
            }
        }
    }
}

#[test]
fn a_bf16_cache_serves_f32_arithmetic_and_the_reverse() {
    let mut world = World::new(4, 2, 32, &[100, 30], 11);
    // Values both types hold, so that the cache's rounding changes nothing.
    for x in world.requests.iter_mut().flatten() {
        *x = half::bf16::from_f32(*x).to_f32();
    }
    for isa in Isa::available() {
        for (dtype, kv_dtype) in [(Compute::F32, KvDType::Bf16), (Compute::Bf16, KvDType::F32)] {
            let run = Run {
                page_size: 16,
                kv_dtype,
                seed: 3,
            };
            let outputs = run.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
            check(&world, &outputs, Compute::F32, "mixed");
        }
    }
}

#[test]
fn long_requests_cross_segments() {
    let world = World::new(2, 1, 8, &[2_200, 1_025], 21);
    for (isa, dtype) in variants() {
        let run = Run {
            page_size: 16,
            kv_dtype: kv_dtype(dtype),
            seed: 5,
        };
        let whole = run.outputs(&mut backend(isa, dtype, 2), &world, &whole(&world));
        check(&world, &whole, dtype, "long");
        let chunked = run.outputs(&mut backend(isa, dtype, 1), &world, &ragged(&world, 8));
        for (a, b) in whole.iter().zip(&chunked) {
            assert_eq!(bits(a), bits(b), "{isa} {dtype:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn chunks_batches_pages_and_threads_do_not_show(
        kv_heads in 1usize..3,
        group in 1usize..6,
        half in 1usize..40,
        lengths in prop::collection::vec(1usize..170, 1..5),
        page_size in prop::sample::select(vec![1usize, 2, 5, 16, 64, 128]),
        threads in 1usize..4,
        seed: u64,
    ) {
        let world = World::new(kv_heads * group, kv_heads, 2 * half, &lengths, seed);
        for (isa, dtype) in variants() {
            let kv_dtype = kv_dtype(dtype);
            let base = Run { page_size: 16, kv_dtype, seed };
            let expected = base.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
            let other = Run { page_size, kv_dtype, seed: seed ^ 1 };
            let mut backend = backend(isa, dtype, threads);
            for steps in [whole(&world), ragged(&world, seed), one_by_one(&world)] {
                let outputs = other.outputs(&mut backend, &world, &steps);
                for (a, b) in expected.iter().zip(&outputs) {
                    prop_assert_eq!(bits(a), bits(b), "{} {:?}", isa, dtype);
                }
            }
        }
    }
}

#[test]
fn instruction_sets_with_the_same_rounding_give_the_same_bits() {
    let world = World::new(6, 2, 40, &[150, 3], 31);
    let run = |isa, dtype| {
        let run = Run {
            page_size: 16,
            kv_dtype: kv_dtype(dtype),
            seed: 1,
        };
        bits(
            &run.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world))
                .concat(),
        )
    };
    let exact = [Isa::Avx2, Isa::Avx512, Isa::Neon];
    let here: Vec<Isa> = exact.into_iter().filter(|isa| isa.is_available()).collect();
    for &isa in &here {
        assert_eq!(run(isa, Compute::F32), run(here[0], Compute::F32));
        assert_eq!(run(isa, Compute::Bf16), run(Isa::Scalar, Compute::Bf16));
    }
}

#[test]
fn a_huge_cache_costs_nothing_until_it_is_written() {
    let mut backend = backend(Isa::detect(), Compute::Bf16, 1);
    let shape = KvShape {
        layers: 32,
        kv_heads: 8,
        head_dim: 128,
        pages: 4_000_000,
        page_size: 1,
        dtype: KvDType::Bf16,
    };
    assert!(backend.kv_cache(&shape).is_ok());
    let absurd = KvShape {
        pages: usize::MAX / 2,
        ..shape
    };
    assert!(backend.kv_cache(&absurd).is_err());
    let odd = KvShape {
        head_dim: 63,
        ..shape
    };
    assert!(
        backend
            .kv_cache(&odd)
            .err()
            .unwrap()
            .to_string()
            .contains("head_dim 63")
    );
}
