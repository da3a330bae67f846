//! Sinks against plain arithmetic, in every way through attention.

use lockstep_backend_cpu::Isa;
use lockstep_types::Dtype;

use super::world::{Run, World, one_by_one, ragged, whole};
use super::{check, kv_dtype, kv_dtypes};
use crate::machine::{backend, bits, variants};

/// Prompts and decode rows, of heads for all four ways, with and without a window. Chunks change
/// no bit.
#[test]
fn sinks_join_the_scores_of_positions() {
    for (heads, kv_heads, head_dim, window) in [
        (8, 1, 64, Some(40)),
        (6, 2, 48, None),
        (16, 1, 128, Some(1)),
    ] {
        let world = World::new(heads, kv_heads, head_dim, &[150, 1, 66], 9);
        let world = world.within(window).beside_sinks(true);
        for (isa, dtype) in variants() {
            for kv_dtype in kv_dtypes(dtype, head_dim) {
                let run = Run {
                    page_size: 16,
                    kv_dtype,
                    seed: 7,
                };
                let outputs = |steps: &[_]| run.outputs(&mut backend(isa, dtype, 2), &world, steps);
                let together = outputs(&whole(&world));
                let what = format!("{isa} {dtype:?} {kv_dtype:?} window {window:?}");
                check(&world, &together, dtype, kv_dtype, &what);
                for steps in [ragged(&world, 8), one_by_one(&world)] {
                    for (a, b) in together.iter().zip(&outputs(&steps)) {
                        assert_eq!(bits(a), bits(b), "{what}");
                    }
                }
            }
        }
    }
}

/// A sink joins once, behind all segments, whether they are computed apart or not.
#[test]
fn segments_computed_apart_have_one_sink() {
    let world = World::new(3, 3, 8, &[1_600], 23).beside_sinks(true);
    for (isa, dtype) in variants() {
        let run = Run {
            page_size: 16,
            kv_dtype: kv_dtype(dtype),
            seed: 5,
        };
        let steps = [vec![(0, 1_590)], vec![(0, 1)], vec![(0, 9)]];
        let outputs =
            |threads, steps: &[_]| run.outputs(&mut backend(isa, dtype, threads), &world, steps);
        let expected = outputs(1, &whole(&world));
        check(&world, &expected, dtype, kv_dtype(dtype), "segments");
        for threads in [2, 5] {
            let found = outputs(threads, &steps);
            assert!(
                bits(&found[0]) == bits(&expected[0]),
                "{isa} {dtype:?} {threads}"
            );
        }
    }
}

/// A sink far below all scores is as none, to the last bit; one far above takes everything.
#[test]
fn sinks_at_both_ends_take_nothing_and_everything() {
    for isa in Isa::available() {
        let world = |sinks| World::new(5, 1, 32, &[90], 3).beside_sinks(sinks);
        let run = Run {
            page_size: 16,
            kv_dtype: kv_dtype(Dtype::Float32),
            seed: 5,
        };
        let outputs = |world: &World| {
            let mut backend = backend(isa, Dtype::Float32, 1);
            run.outputs(&mut backend, world, &whole(world)).concat()
        };
        let [with, without] = [outputs(&world(true)), outputs(&world(false))];
        for (with, without) in with.chunks(5 * 32).zip(without.chunks(5 * 32)) {
            assert_eq!(bits(&with[4 * 32..]), bits(&without[4 * 32..]), "{isa}");
            assert!(with[..32].iter().all(|x| x.abs() < 1e-3), "{isa}");
        }
    }
}
