//! The two products of few query rows, straight from the cache: codes are
//! brought into order in registers and used at once.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_storeu_ps, _mm512_xor_si512,
};

use super::super::cells::BLOCK;
use super::super::transpose::{LANES, avx512, keys_at};
use super::pack::{FLIP, WORDS, half_weave};
use super::{Bytes, CODES, COLUMNS, FewScoresFn, FewSumsFn, Source};

/// Words of the upper or lower bytes of a row of weights.
const BYTE_WORDS: usize = BLOCK / CODES;
/// Vectors in half of 64 columns.
const HALF: usize = COLUMNS / LANES / 2;

/// Joins an upper and a lower sum in one.
#[inline(always)]
unsafe fn whole(upper: __m512i, lower: __m512i) -> __m512i {
    // SAFETY: the caller runs AVX-512.
    unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(upper), lower) }
}

/// See [`FewScoresFn`], for `M` rows.
///
/// # Safety
/// The conditions of [`FewScoresFn`]; the machine runs AVX-512 with VNNI.
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn scores<const M: usize>(
    source: &mut Source<'_>,
    queries: *const u32,
    scores: *mut [f32; BLOCK],
) {
    let words = source.row_bytes / CODES;
    let steps = words / WORDS;
    let all = steps * source.rows.len().div_ceil(LANES);
    for (group, rows) in source.rows.chunks(LANES).enumerate() {
        let from = keys_at(rows, |row| source.row(row));
        // SAFETY: rows lie in the cache; queries and scores hold `M` rows.
        unsafe {
            let (mut upper, mut lower) = ([_mm512_setzero_si512(); M], [_mm512_setzero_si512(); M]);
            let mut input = queries.cast::<i32>();
            for step in 0..steps {
                source.asking.until(group * steps + step + 1, all);
                for codes in avx512::quarter(&from, step * WORDS) {
                    let codes = _mm512_xor_si512(codes, _mm512_set1_epi32(FLIP));
                    for r in 0..M {
                        let (high, low) = (*input.add(r), *input.add(words * M + r));
                        upper[r] = _mm512_dpbusd_epi32(upper[r], codes, _mm512_set1_epi32(high));
                        lower[r] = _mm512_dpbusd_epi32(lower[r], codes, _mm512_set1_epi32(low));
                    }
                    input = input.add(M);
                }
            }
            let scales = queries.add(2 * words * M);
            for r in 0..M {
                let scale = _mm512_set1_ps(*scales.add(r).cast());
                let undo = _mm512_set1_epi32(*scales.add(M + r).cast());
                let sum = _mm512_add_epi32(whole(upper[r], lower[r]), undo);
                let to = (*scores.add(r)).as_mut_ptr().add(group * LANES);
                _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
            }
        }
    }
}

/// See [`FewSumsFn`], for `M` rows.
///
/// # Safety
/// The conditions of [`FewSumsFn`]; the machine runs AVX-512 with VNNI.
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn sums<const M: usize>(
    source: &mut Source<'_>,
    weights: *const Bytes,
    worth: *const f32,
    acc: *mut f32,
    width: usize,
) {
    for part in 0..source.head_dim / COLUMNS {
        // SAFETY: forwarded to the caller; the columns lie within the head.
        unsafe {
            columns::<M, 0>(source, weights, worth, acc, width, part);
            columns::<M, 1>(source, weights, worth, acc, width, part);
        }
    }
}

/// Half `H` of 64 columns.
#[inline(always)]
unsafe fn columns<const M: usize, const H: usize>(
    source: &mut Source<'_>,
    weights: *const Bytes,
    worth: *const f32,
    acc: *mut f32,
    width: usize,
    part: usize,
) {
    let steps = source.rows.len().div_ceil(CODES);
    let all = steps * source.head_dim / COLUMNS * 2;
    let done = steps * (2 * part + H);
    // SAFETY: rows lie in the cache; weights and sums hold `M` rows.
    unsafe {
        let mut upper = [[_mm512_setzero_si512(); HALF]; M];
        let mut lower = upper;
        for (step, rows) in source.rows.chunks(CODES).enumerate() {
            source.asking.until(done + step + 1, all);
            // Positions past the last repeat it; their weights are zero.
            let last = rows[rows.len() - 1];
            let rows: [*const u8; CODES] = std::array::from_fn(|i| {
                let row = rows.get(i).copied().unwrap_or(last) + source.values_after;
                source.row(row).wrapping_add(part * COLUMNS)
            });
            let codes = half_weave::<H>(rows);
            for r in 0..M {
                let weight = weights.add(r).cast::<i32>().add(step);
                let high = _mm512_set1_epi32(*weight);
                for v in 0..HALF {
                    upper[r][v] = _mm512_dpbusd_epi32(upper[r][v], high, codes[v]);
                }
                let low = _mm512_set1_epi32(*weight.add(BYTE_WORDS));
                for v in 0..HALF {
                    lower[r][v] = _mm512_dpbusd_epi32(lower[r][v], low, codes[v]);
                }
            }
        }
        for r in 0..M {
            let worth = _mm512_set1_ps(*worth.add(r));
            for v in 0..HALF {
                let column = part * COLUMNS + (H * HALF + v) * LANES;
                let at = acc.add(r * width + column);
                let sum = _mm512_cvtepi32_ps(whole(upper[r][v], lower[r][v]));
                _mm512_storeu_ps(at, _mm512_fmadd_ps(sum, worth, _mm512_loadu_ps(at)));
            }
        }
    }
}

/// Lists the kernels for as many rows as registers hold sums of.
macro_rules! table {
    ($($m:literal)*) => { [$((scores::<$m>, sums::<$m>)),*] };
}

pub(super) static ROWS: [(FewScoresFn, FewSumsFn); 7] = table!(1 2 3 4 5 6 7);
