//! Paged attention against contiguous attention in f64.

mod sinks;
mod softcaps;
mod tiles;
mod together;
mod trees;
mod windows;
mod world;

use lockstep_backend::{KvShape, Memory as _};
use lockstep_backend_cpu::Isa;
use lockstep_types::{Dtype, KvCacheDtype};
use proptest::prelude::*;

use crate::machine::{backend, bits, runs_amx, variants};
use together::heads_taken_together_do_not_show;
use world::{Run, World, one_by_one, ragged, whole};

fn check(world: &World, outputs: &[Vec<f32>], dtype: Dtype, kv_dtype: KvCacheDtype, what: &str) {
    // Weights are rounded to bf16 before the weighted sum.
    let limit = if dtype == Dtype::Bfloat16 { 2e-2 } else { 2e-5 };
    for (request, output) in outputs.iter().enumerate() {
        let reference = world.reference(request, dtype, kv_dtype);
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

fn kv_dtype(dtype: Dtype) -> KvCacheDtype {
    match dtype {
        Dtype::Bfloat16 => KvCacheDtype::Bfloat16,
        Dtype::Float32 => KvCacheDtype::Float32,
    }
}

/// Windows from one position to more than most requests have, and none.
fn window() -> impl Strategy<Value = Option<usize>> {
    prop::sample::select(vec![
        None,
        None,
        Some(1),
        Some(2),
        Some(7),
        Some(63),
        Some(64),
        Some(65),
        Some(100),
        Some(530),
    ])
}

/// The cache types that suit an arithmetic: the arithmetic's own type, and int8 if heads
/// allow it.
fn kv_dtypes(dtype: Dtype, head_dim: usize) -> impl Iterator<Item = KvCacheDtype> {
    let int8 = head_dim.is_multiple_of(4).then_some(KvCacheDtype::Int8);
    std::iter::once(kv_dtype(dtype)).chain(int8)
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
                for kv_dtype in kv_dtypes(dtype, world.shape.head_dim) {
                    let run = Run {
                        page_size,
                        kv_dtype,
                        seed: 7,
                    };
                    let outputs = run.outputs(&mut backend, world, &whole(world));
                    let what = format!("{isa} {dtype:?} {kv_dtype:?} page {page_size}");
                    check(world, &outputs, dtype, kv_dtype, &what);
                }
            }
        }
    }
}

#[test]
fn a_bf16_cache_serves_f32_arithmetic_and_the_reverse() {
    let mut world = World::new(4, 2, 32, &[100, 30], 11);
    // Both types hold these values, so that the cache's rounding changes nothing.
    for x in world.requests.iter_mut().flatten() {
        *x = half::bf16::from_f32(*x).to_f32();
    }
    for isa in Isa::available() {
        for (dtype, kv_dtype) in [
            (Dtype::Float32, KvCacheDtype::Bfloat16),
            (Dtype::Bfloat16, KvCacheDtype::Float32),
        ] {
            let run = Run {
                page_size: 16,
                kv_dtype,
                seed: 3,
            };
            let outputs = run.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
            check(&world, &outputs, Dtype::Float32, kv_dtype, "mixed");
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
        check(&world, &whole, dtype, kv_dtype(dtype), "long");
        let chunked = run.outputs(&mut backend(isa, dtype, 1), &world, &ragged(&world, 8));
        for (a, b) in whole.iter().zip(&chunked) {
            assert_eq!(bits(a), bits(b), "{isa} {dtype:?}");
        }
    }
}

#[test]
fn segments_computed_apart_give_the_same_bits() {
    // One long request and few heads: positions are cut for more threads.
    let world = World::new(3, 3, 8, &[2_600], 23);
    for (isa, dtype) in variants() {
        for kv_dtype in kv_dtypes(dtype, 8) {
            let run = Run {
                page_size: 16,
                kv_dtype,
                seed: 5,
            };
            let steps = [vec![(0, 2_590)], vec![(0, 1)], vec![(0, 9)]];
            let outputs = |threads, steps: &[_]| {
                bits(&run.outputs(&mut backend(isa, dtype, threads), &world, steps)[0])
            };
            let expected = outputs(1, &whole(&world));
            for threads in [1, 2, 5, 8] {
                let found = outputs(threads, &steps);
                assert!(found == expected, "{isa} {dtype:?} {kv_dtype:?} {threads}");
            }
        }
    }
}

#[test]
fn heads_attended_together_give_the_bits_of_one_alone() {
    for (isa, dtype) in variants() {
        for kv_dtype in kv_dtypes(dtype, 64) {
            heads_taken_together_do_not_show(isa, isa, dtype, kv_dtype);
        }
    }
}

#[test]
fn an_int8_cache_is_near_the_exact_result() {
    let world = World::new(4, 2, 64, &[300, 40], 41);
    let run = Run {
        page_size: 16,
        kv_dtype: KvCacheDtype::Int8,
        seed: 9,
    };
    let outputs = run.outputs(
        &mut backend(Isa::detect(), Dtype::Float32, 1),
        &world,
        &whole(&world),
    );
    for (request, output) in outputs.iter().enumerate() {
        let exact = world.reference(request, Dtype::Float32, KvCacheDtype::Float32);
        let errors = output
            .iter()
            .zip(&exact)
            .map(|(x, exact)| (f64::from(*x) - exact).powi(2));
        let error = (errors.sum::<f64>() / exact.len() as f64).sqrt();
        let size = (exact.iter().map(|x| x * x).sum::<f64>() / exact.len() as f64).sqrt();
        assert!(error <= 0.02 * size, "request {request}: {error} of {size}");
    }
}

#[test]
fn what_is_not_finite_shows_in_all_that_see_it() {
    const ODD: usize = 70;
    for (column, head_dim) in [(0, 64), (2 * 64, 64), (3 * 64 + 5, 64), (2 * 32, 32)] {
        let mut world = World::new(2, 1, head_dim, &[150], 43);
        let width = world.shape.qkv_width();
        world.requests[0][ODD * width + column] = f32::NAN;
        for (isa, dtype) in variants() {
            for kv_dtype in kv_dtypes(dtype, head_dim) {
                let run = Run {
                    page_size: 16,
                    kv_dtype,
                    seed: 3,
                };
                let outputs = run.outputs(&mut backend(isa, dtype, 1), &world, &one_by_one(&world));
                let tokens = outputs[0].chunks(world.shape.out_width());
                for (token, out) in tokens.enumerate() {
                    let odd = out.iter().any(|x| x.is_nan());
                    // No other query sees this token's query; later queries see its keys and
                    // values.
                    let sees = token == ODD || token > ODD && column >= 2 * head_dim;
                    assert_eq!(odd, sees, "{isa} {dtype:?} {kv_dtype:?} {column} {token}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn chunks_batches_pages_and_threads_do_not_show(
        kv_heads in 1usize..3,
        group in 1usize..6,
        half in prop::sample::select(vec![1usize, 4, 13, 16, 16, 32, 32, 39, 48]),
        lengths in prop::collection::vec(1usize..170, 1..5),
        page_size in prop::sample::select(vec![1usize, 2, 5, 16, 64, 128]),
        threads in 1usize..4,
        window in window(),
        seed: u64,
    ) {
        let world = World::new(kv_heads * group, kv_heads, 2 * half, &lengths, seed).within(window)
            .beside_sinks(seed.is_multiple_of(2));
        for (isa, dtype) in variants() {
            for kv_dtype in kv_dtypes(dtype, 2 * half) {
                let base = Run { page_size: 16, kv_dtype, seed };
                let expected = base.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
                let other = Run { page_size, kv_dtype, seed: seed ^ 1 };
                let mut backend = backend(isa, dtype, threads);
                for steps in [whole(&world), ragged(&world, seed), one_by_one(&world)] {
                    let outputs = other.outputs(&mut backend, &world, &steps);
                    for (a, b) in expected.iter().zip(&outputs) {
                        prop_assert_eq!(bits(a), bits(b), "{} {:?} {:?}", isa, dtype, kv_dtype);
                    }
                }
            }
        }
    }
}

#[test]
fn instruction_sets_with_the_same_rounding_give_the_same_bits() {
    // Plain Rust packs every block; other instruction sets read whole columns of 32
    // directly.
    let run = |isa, dtype, kv_dtype, heads: &[usize]| {
        let run = Run {
            page_size: 16,
            kv_dtype,
            seed: 1,
        };
        let outputs = heads.iter().map(|&head_dim| {
            let world = World::new(6, 2, head_dim, &[150, 3], 31);
            let outputs = run.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
            bits(&outputs.concat())
        });
        outputs.collect::<Vec<_>>()
    };
    let heads = [40, 64, 96].as_slice();
    let exact = [Isa::Avx2, Isa::Avx512, Isa::Neon];
    let here: Vec<Isa> = exact.into_iter().filter(|isa| isa.is_available()).collect();
    for &isa in &here {
        for kv in [
            KvCacheDtype::Float32,
            KvCacheDtype::Bfloat16,
            KvCacheDtype::Int8,
        ] {
            let run = |isa| run(isa, Dtype::Float32, kv, heads);
            assert_eq!(run(isa), run(here[0]));
        }
        for kv in [KvCacheDtype::Bfloat16, KvCacheDtype::Int8] {
            // With AVX2 eight bits are multiplied as whole numbers where heads allow.
            let whole_numbers = isa == Isa::Avx2 && kv == KvCacheDtype::Int8;
            let heads = if whole_numbers { &[40, 96] } else { heads };
            let run = |isa| run(isa, Dtype::Bfloat16, kv, heads);
            assert_eq!(run(isa), run(Isa::Scalar));
        }
    }
    if runs_amx() {
        for kv in [KvCacheDtype::Bfloat16, KvCacheDtype::Int8] {
            let run = |isa| run(isa, Dtype::Bfloat16, kv, heads);
            assert_eq!(run(Isa::Amx), run(Isa::AmxEmulated));
        }
    }
}

#[test]
fn a_huge_cache_costs_nothing_until_it_is_written() {
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
    let shape = KvShape {
        latent: None,
        group: 0,
        layers: 32,
        kv_heads: 8,
        head_dim: 128,
        pages: 4_000_000,
        page_size: 1,
        dtype: KvCacheDtype::Bfloat16,
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
    let uneven = KvShape {
        head_dim: 62,
        dtype: KvCacheDtype::Int8,
        ..shape
    };
    let refused = backend.kv_cache(&uneven).err().unwrap().to_string();
    assert!(refused.contains("multiple of 4"), "{refused}");
    assert!(
        backend
            .kv_cache(&odd)
            .err()
            .unwrap()
            .to_string()
            .contains("head_dim 63")
    );
}
