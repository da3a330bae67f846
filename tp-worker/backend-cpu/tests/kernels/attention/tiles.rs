//! Tiles of every height and width, and positions behind the last one.

use lockstep_backend_cpu::Isa;
use lockstep_types::Dtype;
#[cfg(target_arch = "x86_64")]
use lockstep_types::KvCacheDtype;

use super::kv_dtypes;
use super::together::heads_taken_together_do_not_show;
use super::world::{Run, World, one_by_one, ragged, whole};
use crate::machine::{backend, bits, runs_amx, variants};

/// Steps of one request; the first of them bring `counts` tokens.
fn steps_of(total: usize, counts: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let rest = total - counts.iter().sum::<usize>();
    let counts = counts.iter().copied().chain([rest]);
    counts.map(|count| vec![(0, count)]).collect()
}

#[test]
fn tiles_give_the_bits_of_their_emulation() {
    if !runs_amx() {
        return;
    }
    for kv_dtype in kv_dtypes(Dtype::Bfloat16, 64) {
        let (isa, dtype) = (Isa::Amx, Dtype::Bfloat16);
        heads_taken_together_do_not_show(isa, Isa::AmxEmulated, dtype, kv_dtype);
    }
    for (index, head_dim) in [16, 32, 48, 64, 80, 96, 128, 192, 256]
        .into_iter()
        .enumerate()
    {
        for group in [1, 4 + index % 5] {
            let seed = (10 * index + group) as u64;
            let world = World::new(2 * group, 2, head_dim, &[140, 3], seed);
            for kv_dtype in kv_dtypes(Dtype::Bfloat16, head_dim) {
                let run = |isa, page_size, steps: &[_]| {
                    let run = Run {
                        page_size,
                        kv_dtype,
                        seed,
                    };
                    let outputs = run.outputs(&mut backend(isa, Dtype::Bfloat16, 2), &world, steps);
                    bits(&outputs.concat())
                };
                let expected = run(Isa::AmxEmulated, 16, &whole(&world));
                for page_size in [1, 16] {
                    for steps in [whole(&world), ragged(&world, seed), one_by_one(&world)] {
                        let found = run(Isa::Amx, page_size, &steps);
                        assert!(
                            found == expected,
                            "{head_dim} {group} {kv_dtype:?} {page_size}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn heights_of_tiles_do_not_show() {
    let counts: Vec<usize> = (15..=33).collect();
    let total = counts.iter().sum::<usize>() + 3;
    for head_dim in [32, 64] {
        let world = World::new(1, 1, head_dim, &[total], 51);
        for (isa, dtype) in variants().filter(|(_, dtype)| *dtype == Dtype::Bfloat16) {
            for kv_dtype in kv_dtypes(dtype, head_dim) {
                let run = Run {
                    page_size: 16,
                    kv_dtype,
                    seed: 2,
                };
                let mut backend = backend(isa, dtype, 1);
                let expected = run.outputs(&mut backend, &world, &whole(&world));
                let found = run.outputs(&mut backend, &world, &steps_of(total, &counts));
                assert!(
                    bits(&found[0]) == bits(&expected[0]),
                    "{isa} {kv_dtype:?} {head_dim}"
                );
            }
        }
    }
}

#[test]
fn what_cells_held_before_does_not_show() {
    for head_dim in [24, 32, 64] {
        let world = World::new(4, 2, head_dim, &[75, 17, 1], 53);
        for (isa, dtype) in variants() {
            for kv_dtype in kv_dtypes(dtype, head_dim) {
                for page_size in [1, 16, 64] {
                    let run = Run {
                        page_size,
                        kv_dtype,
                        seed: 4,
                    };
                    let mut backend = backend(isa, dtype, 1);
                    for steps in [whole(&world), one_by_one(&world)] {
                        let expected = run.outputs(&mut backend, &world, &steps);
                        let found = run.outputs_after_nan(&mut backend, &world, &steps);
                        assert!(
                            bits(&found.concat()) == bits(&expected.concat()),
                            "{isa} {dtype:?} {kv_dtype:?} {head_dim} page {page_size}"
                        );
                    }
                }
            }
        }
    }
}

/// The instruction sets other than AMX that multiply codes as whole numbers, where this
/// machine has them.
#[cfg(target_arch = "x86_64")]
fn without_tiles() -> impl Iterator<Item = Isa> {
    let vnni = std::arch::is_x86_feature_detected!("avx512vnni");
    let all = [(Isa::Avx2, true), (Isa::Avx512Bf16, vnni)];
    let here = all
        .into_iter()
        .filter(|(isa, has)| isa.is_available() && *has);
    here.map(|(isa, _)| isa)
}

#[cfg(target_arch = "x86_64")]
fn agrees_with_the_emulation(isa: Isa, world: &World, ways: &[Vec<Vec<(usize, usize)>>]) {
    let run = |isa| {
        let run = Run {
            page_size: 16,
            kv_dtype: KvCacheDtype::Int8,
            seed: 1,
        };
        let mut backend = backend(isa, Dtype::Bfloat16, 1);
        let outputs = ways.iter();
        let outputs = outputs.map(|steps| run.outputs(&mut backend, world, steps).concat());
        bits(&outputs.collect::<Vec<_>>().concat())
    };
    let (found, expected) = (run(isa), run(Isa::AmxEmulated));
    assert!(found == expected, "{isa} {:?}", world.shape);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_eight_bit_cache_has_the_bits_of_integers_without_tiles() {
    // Each number of few rows that kernels are written for, beside blocks of many rows.
    let shapes = [1, 2, 3, 4, 5, 6, 7].map(|group| (64, group));
    let wide = [(128, 4), (192, 5), (256, 6), (512, 7)];
    for isa in without_tiles() {
        for (head_dim, group) in shapes.into_iter().chain(wide) {
            let world = World::new(2 * group, 2, head_dim, &[140, 3], 57);
            agrees_with_the_emulation(isa, &world, &[whole(&world), one_by_one(&world)]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_largest_integers_do_not_overflow() {
    // All values are the largest of their rows: 32,512 times 127, 512 times in a score.
    let mut world = World::new(6, 1, 512, &[70], 58);
    world.requests.iter_mut().flatten().for_each(|x| *x = 1.0);
    for isa in without_tiles() {
        agrees_with_the_emulation(isa, &world, &[whole(&world), one_by_one(&world)]);
    }
    let run = Run {
        page_size: 16,
        kv_dtype: KvCacheDtype::Int8,
        seed: 1,
    };
    for isa in Isa::available() {
        let mut backend = backend(isa, Dtype::Bfloat16, 1);
        let outputs = run.outputs(&mut backend, &world, &whole(&world)).concat();
        assert!(outputs.iter().all(|x| (x - 1.0).abs() < 0.01), "{isa}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn whole_numbers_hide_what_is_not_finite_from_those_before_it() {
    const ODD: usize = 70;
    for column in [2 * 64, 3 * 64 + 5] {
        let mut world = World::new(2, 1, 64, &[150], 43);
        let width = world.shape.qkv_width();
        world.requests[0][ODD * width + column] = f32::NAN;
        let run = Run {
            page_size: 16,
            kv_dtype: KvCacheDtype::Int8,
            seed: 3,
        };
        for isa in without_tiles().chain([Isa::AmxEmulated]) {
            let mut backend = backend(isa, Dtype::Bfloat16, 1);
            // All tokens in one step, so that rows that see it share tiles with rows that do
            // not.
            let outputs = run.outputs(&mut backend, &world, &whole(&world)).concat();
            let tokens = outputs.chunks(world.shape.out_width());
            for (token, out) in tokens.enumerate() {
                let odd = out.iter().any(|x| x.is_nan());
                assert_eq!(odd, token >= ODD, "{isa} {column} {token}");
            }
        }
    }
}
