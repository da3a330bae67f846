//! Sliding windows against plain arithmetic, across blocks and segments.

use super::world::{Run, World, one_by_one, ragged, whole};
use super::{check, kv_dtype, kv_dtypes};
use crate::machine::{backend, bits, variants};

#[test]
fn a_window_shows_the_nearest_positions() {
    let worlds = [
        (4, 1, 64, [1, 16, 63, 64, 65, 149].as_slice()),
        (6, 2, 48, &[7, 70]),
        (16, 1, 128, &[66]),
    ];
    let worlds = worlds
        .into_iter()
        .flat_map(|(heads, kv_heads, head_dim, windows)| {
            let world = move |window| {
                World::new(heads, kv_heads, head_dim, &[150, 1, 66], 7).within(Some(window))
            };
            windows.iter().map(move |window| (world(*window), *window))
        });
    for (world, window) in worlds {
        for (isa, dtype) in variants() {
            let mut backend = backend(isa, dtype, 2);
            for kv_dtype in kv_dtypes(dtype, world.shape.head_dim) {
                let run = Run {
                    page_size: 16,
                    kv_dtype,
                    seed: 7,
                };
                let outputs = run.outputs(&mut backend, &world, &whole(&world));
                let what = format!("{isa} {dtype:?} {kv_dtype:?} window {window}");
                check(&world, &outputs, dtype, kv_dtype, &what);
            }
        }
    }
}

/// Rows of a task begin in different segments, and whole segments lie behind all windows.
#[test]
fn windows_cross_segments() {
    for window in [40, 512, 700] {
        let world = World::new(2, 1, 8, &[1_600, 1_025], 21).within(Some(window));
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
                assert_eq!(bits(a), bits(b), "{isa} {dtype:?} {window}");
            }
        }
    }
}

#[test]
fn segments_of_a_window_computed_apart_give_the_same_bits() {
    // One long request and few heads: positions are cut for more threads.
    let world = World::new(3, 3, 8, &[2_600], 23).within(Some(1_700));
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
            for threads in [2, 5, 8] {
                let found = outputs(threads, &steps);
                assert!(found == expected, "{isa} {dtype:?} {kv_dtype:?} {threads}");
            }
        }
    }
}

/// Positions behind the window are not read, so that their pages may hold anything.
#[test]
fn what_lies_behind_a_window_shows_in_nobody() {
    const ODD: usize = 70;
    const WINDOW: usize = 20;
    for (column, head_dim) in [(2 * 64, 64), (3 * 64 + 5, 64), (2 * 32, 32)] {
        let mut world = World::new(2, 1, head_dim, &[150], 43).within(Some(WINDOW));
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
                    let sees = (ODD..ODD + WINDOW).contains(&token);
                    assert_eq!(odd, sees, "{isa} {dtype:?} {kv_dtype:?} {column} {token}");
                }
            }
        }
    }
}

/// A window as long as the request hides nothing, to the bit.
#[test]
fn a_window_that_is_never_full_is_none() {
    let world = World::new(4, 2, 64, &[130], 9);
    for (isa, dtype) in variants() {
        let run = Run {
            page_size: 16,
            kv_dtype: kv_dtype(dtype),
            seed: 1,
        };
        let expected = run.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
        let world = World::new(4, 2, 64, &[130], 9).within(Some(130));
        let found = run.outputs(&mut backend(isa, dtype, 1), &world, &whole(&world));
        assert_eq!(bits(&found[0]), bits(&expected[0]), "{isa} {dtype:?}");
    }
}
