//! Bounded scores against plain arithmetic, in every way through attention.

use super::world::{Run, World, ragged, whole};
use super::{check, kv_dtypes};
use crate::machine::{backend, bits, variants};

/// Prompts and decode rows, of heads for all four ways, with a bound that bites and one that
/// hardly does. Chunks change no bit.
#[test]
fn scores_are_bounded_before_positions_are_hidden() {
    for (heads, kv_heads, head_dim, softcap) in
        [(4, 1, 64, 0.5), (6, 2, 48, 2.0), (16, 1, 128, 50.0)]
    {
        let world = World::new(heads, kv_heads, head_dim, &[150, 1, 66], 9);
        let world = world.within(Some(40)).capped(softcap);
        for (isa, dtype) in variants() {
            for kv_dtype in kv_dtypes(dtype, head_dim) {
                let run = Run {
                    page_size: 16,
                    kv_dtype,
                    seed: 7,
                };
                let outputs = |steps: &[_]| run.outputs(&mut backend(isa, dtype, 2), &world, steps);
                let together = outputs(&whole(&world));
                let what = format!("{isa} {dtype:?} {kv_dtype:?} bound {softcap}");
                check(&world, &together, dtype, kv_dtype, &what);
                let chunked = outputs(&ragged(&world, 8));
                for (a, b) in together.iter().zip(&chunked) {
                    assert_eq!(bits(a), bits(b), "{what}");
                }
            }
        }
    }
}
