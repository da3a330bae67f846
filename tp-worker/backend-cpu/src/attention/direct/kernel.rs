//! The two loops, for any format on any instruction set.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use super::format::{Format, Simd};
use super::{COLUMNS, Source};
use crate::attention::cells::BLOCK;
use crate::attention::transpose::LANES;

/// 4-byte words of a row turned around at once.
const WORDS: usize = 4;

/// See [`super::ScoresFn`], for `M` rows.
///
/// # Safety
/// As there, inlined in a function compiled for the format's instructions.
#[inline(always)]
pub(super) unsafe fn scores<F: Format, const M: usize>(
    source: &mut Source<'_>,
    queries: *const u32,
    scores: *mut [f32; BLOCK],
) {
    let words = source.row_bytes / 4;
    let steps = words / WORDS;
    let all = steps * source.rows.len().div_ceil(LANES);
    for (group, rows) in source.rows.chunks(LANES).enumerate() {
        // Lanes without a position repeat the first; their scores are not seen.
        let mut from = [source.row(rows[0]).cast::<u32>(); LANES];
        for (from, &row) in from.iter_mut().zip(rows) {
            *from = source.row(row).cast();
        }
        // SAFETY: rows lie in the cache and hold `words`; queries hold `M` rows
        // of their inputs, and scores `M` rows of a block.
        unsafe {
            let mut sums = [F::Simd::zero(); M];
            let mut input = queries;
            for step in 0..steps {
                source.asking.until(group * steps + step + 1, all);
                for words in F::Simd::quarter(&from, step * WORDS) {
                    for part in 0..F::KEY_PARTS {
                        let key = F::key(words, part);
                        for r in 0..M {
                            sums[r] = F::dot::<M>(sums[r], input.add(r), key);
                        }
                        input = input.add(M);
                    }
                }
            }
            for r in 0..M {
                let to = (*scores.add(r)).as_mut_ptr().add(group * LANES);
                F::Simd::store(to, sums[r]);
            }
        }
    }
}

/// See [`super::SumsFn`], for `M` rows: up to `P` times 32 columns at once, `H`
/// halves of them.
///
/// # Safety
/// As there, inlined in a function compiled for the format's instructions.
#[inline(always)]
pub(super) unsafe fn sums<F: Format, const M: usize, const P: usize, const H: usize>(
    source: &mut Source<'_>,
    weights: *const [u32; BLOCK],
    acc: *mut f32,
    width: usize,
) {
    let panels = source.head_dim / COLUMNS;
    let mut panel = 0;
    // SAFETY: forwarded to the caller; panels lie within the head.
    unsafe {
        while panel + P <= panels {
            for half in (0..2).step_by(H) {
                if source.asking.is_done() {
                    columns::<F, M, P, H, false>(source, weights, acc, width, panel, half);
                } else {
                    columns::<F, M, P, H, true>(source, weights, acc, width, panel, half);
                }
            }
            panel += P;
        }
        while panel < panels {
            for half in (0..2).step_by(H) {
                if source.asking.is_done() {
                    columns::<F, M, 1, H, false>(source, weights, acc, width, panel, half);
                } else {
                    columns::<F, M, 1, H, true>(source, weights, acc, width, panel, half);
                }
            }
            panel += 1;
        }
    }
}

#[inline(always)]
unsafe fn columns<F: Format, const M: usize, const P: usize, const H: usize, const ASKS: bool>(
    source: &mut Source<'_>,
    weights: *const [u32; BLOCK],
    acc: *mut f32,
    width: usize,
    panel: usize,
    half: usize,
) {
    let at = |r: usize, p: usize, h: usize| {
        acc.wrapping_add(r * width + (panel + p) * COLUMNS + (half + h) * LANES)
    };
    // SAFETY: rows lie in the cache; weights and sums hold `M` rows.
    unsafe {
        let mut sums = [[[F::Simd::zero(); H]; P]; M];
        for r in 0..M {
            for p in 0..P {
                for h in 0..H {
                    sums[r][p][h] = F::Simd::load(at(r, p, h));
                }
            }
        }
        // Where registers hold the sums of one half alone, the first pass over
        // the block asks for everything: the others have no registers left.
        let steps = source.rows.len().div_ceil(F::POSITIONS);
        let passes = match H {
            1 => 1,
            _ => (source.head_dim / COLUMNS).div_ceil(P),
        };
        let (all, done) = (steps * passes, steps * (panel / P + half));
        for (step, rows) in source.rows.chunks(F::POSITIONS).enumerate() {
            if ASKS {
                source.asking.until(done + step + 1, all);
            }
            let first = source.row(rows[0] + source.values_after);
            // An odd last position is paired with itself: its partner's weight is 0.
            let next = source.row(rows[rows.len() - 1] + source.values_after);
            for p in 0..P {
                let column = (panel + p) * COLUMNS;
                let mut values = [F::value(first, next, column, half); H];
                for h in 1..H {
                    values[h] = F::value(first, next, column, half + h);
                }
                // Halves run fastest: they share a weight, which is loaded once.
                for r in 0..M {
                    let weight = weights.add(r).cast::<u32>().add(step);
                    for h in 0..H {
                        sums[r][p][h] = F::dot::<M>(sums[r][p][h], weight, values[h]);
                    }
                }
            }
        }
        for r in 0..M {
            for p in 0..P {
                for h in 0..H {
                    F::Simd::store(at(r, p, h), sums[r][p][h]);
                }
            }
        }
    }
}

/// `direct!(NAME in module: Format, Order, "features": scores [m …], sums [m p h …])`:
/// the kernels of one format, compiled for the instructions it needs.
macro_rules! direct {
    (
        $name:ident in $module:ident: $format:ty, $order:ident, $(#[$features:meta])?
        [$($scores:literal)*], [$($m:literal $p:literal $h:literal),*]
    ) => {
        mod $module {
            use super::*;
            use $crate::attention::cells::BLOCK;
            use $crate::attention::direct::{Source, kernel};

            $(#[$features])?
            pub(super) unsafe fn scores<const M: usize>(
                source: &mut Source<'_>,
                queries: *const u32,
                scores: *mut [f32; BLOCK],
            ) {
                // SAFETY: the caller's promise; compiled for the format.
                unsafe { kernel::scores::<$format, M>(source, queries, scores) }
            }

            $(#[$features])?
            pub(super) unsafe fn sums<const M: usize, const P: usize, const H: usize>(
                source: &mut Source<'_>,
                weights: *const [u32; BLOCK],
                acc: *mut f32,
                width: usize,
            ) {
                // SAFETY: as above.
                unsafe { kernel::sums::<$format, M, P, H>(source, weights, acc, width) }
            }
        }

        pub(super) static $name: $crate::attention::direct::Direct =
            $crate::attention::direct::Direct {
                scores: &[$($module::scores::<$scores>),*],
                sums: &[$($module::sums::<$m, $p, $h>),*],
                order: $crate::attention::direct::Order::$order,
            };
    };
}

pub(super) use direct;
