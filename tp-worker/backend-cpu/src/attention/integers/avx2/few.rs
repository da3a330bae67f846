//! The two products of few query rows, straight from the cache: codes are widened
//! in registers and used at once.

use super::super::{Bytes, CODES, FewScoresFn, FewSumsFn, Source};
use super::{
    BLOCK, HALVES, LANES, WORDS, add_sums, avx2, keys_at, multiply_add, pair, store_scores,
    widened, woven, zero,
};
use crate::gemm::FEW_ROWS;

/// Positions between two checks of the rows to ask for.
const STRETCH: usize = 8;
const _: () = assert!(STRETCH.is_multiple_of(HALVES));
/// Largest number of rows for which the compiler may load queries early: the codes that are
/// turned around need eight registers.
const EARLY: usize = 2;

/// See [`FewScoresFn`], for `M` rows.
///
/// # Safety
/// The conditions of [`FewScoresFn`]; the machine runs AVX2.
#[target_feature(enable = "avx2,fma")]
unsafe fn scores<const M: usize>(
    source: &mut Source<'_>,
    queries: *const u32,
    scores: *mut [f32; BLOCK],
) {
    let steps = source.row_bytes / CODES / WORDS;
    let all = steps * source.rows.len().div_ceil(LANES);
    for (group, rows) in source.rows.chunks(LANES).enumerate() {
        let from = keys_at(rows, |row| source.row(row));
        // SAFETY: rows lie in the cache; queries and scores hold `M` rows.
        unsafe {
            let mut sums = [zero(); M];
            let mut input = queries;
            for step in 0..steps {
                source.asking.until(group * steps + step + 1, all);
                for words in avx2::both_quarters(&from, step * WORDS) {
                    for codes in widened(words) {
                        for (r, sum) in sums.iter_mut().enumerate() {
                            *sum = multiply_add::<M, EARLY>(*sum, input.add(r), codes);
                        }
                        input = input.add(M);
                    }
                }
            }
            let scales = input.cast::<f32>();
            for (r, sum) in sums.into_iter().enumerate() {
                let to = (*scores.add(r)).as_mut_ptr().add(group * LANES);
                store_scores(to, sum, *scales.add(r));
            }
        }
    }
}

/// See [`FewSumsFn`], for `M` rows, `P` times 16 columns at a time.
///
/// # Safety
/// The conditions of [`FewSumsFn`]; the machine runs AVX2; `P` times 16 divides the head's columns.
#[target_feature(enable = "avx2,fma")]
unsafe fn sums<const M: usize, const P: usize>(
    source: &mut Source<'_>,
    weights: *const Bytes,
    worth: *const f32,
    acc: *mut f32,
    width: usize,
) {
    let columns = P * LANES;
    let stretches = source.rows.len().div_ceil(STRETCH);
    let all = stretches * (source.head_dim / columns);
    // SAFETY: rows lie in the cache; weights and sums hold `M` rows.
    unsafe {
        // Each pass over the columns uses these addresses again.
        let mut from = [source.data; BLOCK];
        for (from, &row) in from.iter_mut().zip(source.rows) {
            *from = source.row(row + source.values_after);
        }
        let count = source.rows.len();
        for first in (0..source.head_dim).step_by(columns) {
            let mut sums = [[zero(); P]; M];
            for stretch in 0..stretches {
                let done = first / columns * stretches + stretch + 1;
                source.asking.until(done, all);
                let begin = stretch * STRETCH;
                for at in (begin..count.min(begin + STRETCH)).step_by(HALVES) {
                    // An odd last position is beside itself: its partner's weight is zero.
                    let (row, other) = (from[at], from[(at + 1).min(count - 1)]);
                    for p in 0..P {
                        let column = first + p * LANES;
                        let value = woven(row.add(column), other.add(column));
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let weight = pair(weights, r, at / HALVES);
                            sums[p] = multiply_add::<M, FEW_ROWS>(sums[p], weight, value);
                        }
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (p, sum) in sums.into_iter().enumerate() {
                    let at = acc.add(r * width + first + p * LANES);
                    add_sums(at, sum, *worth.add(r));
                }
            }
        }
    }
}

/// Kernels for as many rows as registers hold sums of.
pub(in super::super) static ROWS: [(FewScoresFn, FewSumsFn); 6] = [
    (scores::<1>, sums::<1, 4>),
    (scores::<2>, sums::<2, 2>),
    (scores::<3>, sums::<3, 1>),
    (scores::<4>, sums::<4, 1>),
    (scores::<5>, sums::<5, 1>),
    (scores::<6>, sums::<6, 1>),
];
