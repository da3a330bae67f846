//! The two loops, for any arithmetic on 16 lanes of AVX-512.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and part"
)]

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_loadu_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use super::{COLUMNS, Source};
use crate::attention::cells::BLOCK;
use crate::attention::transpose::{LANES, quarter};

/// Bytes that memory hands out at once.
const LINE: usize = 64;
/// 4-byte words of a row turned around at once.
const WORDS: usize = 4;

/// How words of keys and rows of values become operands.
///
/// # Safety
/// The methods use AVX-512: call them only, inlined, from a function compiled
/// for it, with pointers valid for what they read.
pub(super) trait Format {
    /// Operands in a 4-byte word of a key, as many as inputs of a query.
    const KEY_PARTS: usize;
    /// Positions whose values one weight input covers.
    const POSITIONS: usize;
    /// The operands of 16 positions' words; the first [`Self::KEY_PARTS`] count.
    unsafe fn key_parts(words: __m512i) -> [__m512i; 4];
    /// Two operands of 32 columns of a row and, with two positions, of the next.
    unsafe fn value_parts(row: *const u8, next: *const u8, column: usize) -> [__m512i; 2];
    /// `acc + input · part`, the input for all lanes.
    unsafe fn dot(acc: __m512, input: *const u32, part: __m512i) -> __m512;
}

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
            // SAFETY: a prefetch touches nothing and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
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
            let mut acc = [_mm512_setzero_ps(); M];
            let mut input = queries;
            let mut asked = 0;
            for step in 0..steps {
                while asked * steps < (step + 1) * LANES {
                    source.prefetch(group * LANES + asked, 0);
                    asked += 1;
                }
                for column in quarter(&from, step * WORDS) {
                    let parts = F::key_parts(column);
                    for part in 0..F::KEY_PARTS {
                        for r in 0..M {
                            acc[r] = F::dot(acc[r], input.add(r), parts[part]);
                        }
                        input = input.add(M);
                    }
                }
            }
            for r in 0..M {
                let to = (*scores.add(r)).as_mut_ptr().add(group * LANES);
                _mm512_storeu_ps(to, acc[r]);
            }
        }
    }
}

/// See [`super::SumsFn`], for `M` rows, up to `P` times 32 columns at once.
///
/// # Safety
/// As there, inlined in a function compiled for the format's instructions.
#[inline(always)]
pub(super) unsafe fn sums<F: Format, const M: usize, const P: usize>(
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
            columns::<F, M, P>(source, weights, acc, width, panel);
            panel += P;
        }
        while panel < panels {
            columns::<F, M, 1>(source, weights, acc, width, panel);
            panel += 1;
        }
    }
}

#[inline(always)]
unsafe fn columns<F: Format, const M: usize, const P: usize>(
    source: &Source<'_>,
    weights: *const [u32; BLOCK],
    acc: *mut f32,
    width: usize,
    panel: usize,
) {
    let at = |r: usize, p: usize, h: usize| {
        acc.wrapping_add(r * width + (panel + p) * COLUMNS + h * LANES)
    };
    // SAFETY: rows lie in the cache; weights and sums hold `M` rows.
    unsafe {
        let mut sums = [[[_mm512_setzero_ps(); 2]; P]; M];
        for r in 0..M {
            for p in 0..P {
                sums[r][p] = [_mm512_loadu_ps(at(r, p, 0)), _mm512_loadu_ps(at(r, p, 1))];
            }
        }
        for (step, rows) in source.rows.chunks(F::POSITIONS).enumerate() {
            if panel == 0 {
                for i in 0..F::POSITIONS {
                    source.prefetch(step * F::POSITIONS + i, source.values_after);
                }
            }
            let first = source.row(rows[0] + source.values_after);
            // An odd last position is paired with itself: its partner's weight is 0.
            let next = source.row(rows[rows.len() - 1] + source.values_after);
            for p in 0..P {
                let parts = F::value_parts(first, next, (panel + p) * COLUMNS);
                for r in 0..M {
                    let weight = weights.add(r).cast::<u32>().add(step);
                    for h in 0..2 {
                        sums[r][p][h] = F::dot(sums[r][p][h], weight, parts[h]);
                    }
                }
            }
        }
        for r in 0..M {
            for p in 0..P {
                for h in 0..2 {
                    _mm512_storeu_ps(at(r, p, h), sums[r][p][h]);
                }
            }
        }
    }
}
