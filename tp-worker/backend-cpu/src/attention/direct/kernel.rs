//! The two loops, for any format on any instruction set.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use std::mem::MaybeUninit;

use super::format::{Format, Simd, Words};
use super::{COLUMNS, Source};
use crate::attention::cells::BLOCK;
use crate::attention::transpose::{LANES, keys_at};

/// 4-byte words of a row turned around at once.
const WORDS: usize = 4;

/// Positions between two checks of the rows to ask for.
const STRETCH: usize = 8;

/// See [`super::ScoresFn`], for `M` rows. Keys of `S` steps are turned around before
/// they are used.
///
/// # Safety
/// The conditions of [`super::ScoresFn`], inlined in a function compiled for the format's
/// instructions.
#[inline(always)]
pub(super) unsafe fn scores<F: Format, const M: usize, const S: usize>(
    source: &mut Source<'_>,
    queries: *const u32,
    scores: *mut [f32; BLOCK],
) {
    let words = source.row_bytes / 4;
    let steps = words / WORDS;
    // Turned around and used.
    let all = 2 * steps * source.rows.len().div_ceil(LANES);
    let mut turned = [const { MaybeUninit::<[Words<F>; WORDS]>::uninit() }; S];
    for (group, rows) in source.rows.chunks(LANES).enumerate() {
        let from = keys_at(rows, |row| source.row(row));
        // SAFETY: rows lie in the cache and hold `words`; queries hold `M` rows
        // of their inputs, and scores `M` rows of a block.
        unsafe {
            let mut sums = [F::Simd::zero(); M];
            let mut input = queries;
            for first in (0..steps).step_by(S) {
                let turned = &mut turned[..S.min(steps - first)];
                let (begun, count) = (2 * (group * steps + first), turned.len());
                for (step, turned) in turned.iter_mut().enumerate() {
                    // Words that are turned alone are used at once; more rows are asked for
                    // then.
                    if S > 1 {
                        source.asking.until(begun + step + 1, all);
                    }
                    turned.write(F::Simd::quarter(&from, (first + step) * WORDS));
                }
                for (step, turned) in turned.iter().enumerate() {
                    source.asking.until(begun + count + step + 1, all);
                    for words in turned.assume_init() {
                        for part in 0..F::KEY_PARTS {
                            let key = F::key(words, part);
                            for r in 0..M {
                                sums[r] = F::dot::<M>(sums[r], input.add(r), key);
                            }
                            input = input.add(M);
                        }
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

/// See [`super::SumsFn`], for `M` rows. Handles up to `P` times 32 columns at once, and `H`
/// halves of these.
///
/// # Safety
/// The conditions of [`super::SumsFn`], inlined in a function compiled for the format's
/// instructions.
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
            halves::<F, M, P, H>(source, weights, acc, width, panel);
            panel += P;
        }
        while panel < panels {
            halves::<F, M, 1, H>(source, weights, acc, width, panel);
            panel += 1;
        }
    }
}

#[inline(always)]
unsafe fn halves<F: Format, const M: usize, const P: usize, const H: usize>(
    source: &mut Source<'_>,
    weights: *const [u32; BLOCK],
    acc: *mut f32,
    width: usize,
    panel: usize,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        columns::<F, M, P, H, 0>(source, weights, acc, width, panel);
        if H == 1 {
            columns::<F, M, P, H, 1>(source, weights, acc, width, panel);
        }
    }
}

/// `H` halves from `HALF` on of `P` times 32 columns.
#[inline(always)]
unsafe fn columns<F: Format, const M: usize, const P: usize, const H: usize, const HALF: usize>(
    source: &mut Source<'_>,
    weights: *const [u32; BLOCK],
    acc: *mut f32,
    width: usize,
    panel: usize,
) {
    let at = |r: usize, p: usize, h: usize| {
        acc.wrapping_add(r * width + (panel + p) * COLUMNS + (HALF + h) * LANES)
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
        // Each pass over the block asks for its part of the rows, by halves of 32 columns.
        let asks = !source.asking.is_done();
        let positions = if asks { STRETCH } else { BLOCK };
        let stretches = source.rows.len().div_ceil(positions);
        let all = stretches * source.head_dim / COLUMNS * 2;
        let done = stretches * (2 * panel + HALF * P);
        for (stretch, rows) in source.rows.chunks(positions).enumerate() {
            source.asking.until(done + (stretch + 1) * P * H, all);
            let before = stretch * positions / F::POSITIONS;
            for (step, rows) in rows.chunks(F::POSITIONS).enumerate() {
                let first = source.row(rows[0] + source.values_after);
                // An odd last position is paired with itself: its partner's weight is 0.
                let next = source.row(rows[rows.len() - 1] + source.values_after);
                let step = before + step;
                for p in 0..P {
                    let column = (panel + p) * COLUMNS;
                    let mut values = [F::value(first, next, column, HALF); H];
                    for h in 1..H {
                        values[h] = F::value(first, next, column, HALF + h);
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

/// `direct!(NAME in module: Format, Order, "features": scores [m … : s], sums [m p h …])`:
/// the kernels of one format, compiled for the instructions it needs.
macro_rules! direct {
    (
        $name:ident in $module:ident: $format:ty, $order:ident, $(#[$features:meta])?
        [$($scores:literal)* : $steps:literal], [$($m:literal $p:literal $h:literal),*]
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
                unsafe { kernel::scores::<$format, M, $steps>(source, queries, scores) }
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
