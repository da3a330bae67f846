//! The two loops, for any format on any instruction set.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use super::format::{Format, Simd};
use super::{COLUMNS, Source};
use crate::attention::cells::BLOCK;
use crate::attention::transpose::LANES;
use crate::prefetch::far;

/// Bytes that memory hands out at once.
const LINE: usize = 64;
/// 4-byte words of a row turned around at once.
const WORDS: usize = 4;

impl Source<'_> {
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.data.wrapping_add(row * self.row_bytes)
    }

    /// Asks for the next block's position `index`; `after` rows further on.
    #[inline(always)]
    fn prefetch(&self, index: usize, after: usize) {
        let Some(row) = self.next.get(index) else {
            return;
        };
        let start = self.row(row + after);
        for line in (0..self.row_bytes).step_by(LINE) {
            far(start.wrapping_add(line));
        }
    }
}

/// See [`super::ScoresFn`], for `M` rows.
///
/// # Safety
/// As there, inlined in a function compiled for the format's instructions.
#[inline(always)]
pub(super) unsafe fn scores<F: Format, const M: usize>(
    source: &Source<'_>,
    queries: *const u32,
    scores: *mut [f32; BLOCK],
) {
    let words = source.row_bytes / 4;
    // The next block's rows are asked for at even distances.
    let steps = words / WORDS;
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
            let mut asked = 0;
            for step in 0..steps {
                while asked * steps < (step + 1) * LANES {
                    source.prefetch(group * LANES + asked, 0);
                    asked += 1;
                }
                for words in F::Simd::quarter(&from, step * WORDS) {
                    for part in 0..F::KEY_PARTS {
                        let key = F::key(words, part);
                        for r in 0..M {
                            sums[r] = F::dot(sums[r], input.add(r), key);
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
    source: &Source<'_>,
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
                columns::<F, M, P, H>(source, weights, acc, width, panel, half);
            }
            panel += P;
        }
        while panel < panels {
            for half in (0..2).step_by(H) {
                columns::<F, M, 1, H>(source, weights, acc, width, panel, half);
            }
            panel += 1;
        }
    }
}

#[inline(always)]
unsafe fn columns<F: Format, const M: usize, const P: usize, const H: usize>(
    source: &Source<'_>,
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
        for (step, rows) in source.rows.chunks(F::POSITIONS).enumerate() {
            if panel + half == 0 {
                for i in 0..F::POSITIONS {
                    source.prefetch(step * F::POSITIONS + i, source.values_after);
                }
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
                        sums[r][p][h] = F::dot(sums[r][p][h], weight, values[h]);
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
                source: &Source<'_>,
                queries: *const u32,
                scores: *mut [f32; BLOCK],
            ) {
                // SAFETY: the caller's promise; compiled for the format.
                unsafe { kernel::scores::<$format, M>(source, queries, scores) }
            }

            $(#[$features])?
            pub(super) unsafe fn sums<const M: usize, const P: usize, const H: usize>(
                source: &Source<'_>,
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
