//! The two products, for any number of query rows.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and vector"
)]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::super::cells::BLOCK;
use super::super::transpose::LANES;
use super::{Bytes, CODES, COLUMNS, ScoresFn, SumsFn};

/// The most query rows at a time.
const ROWS: usize = 12;
/// Words of the upper or lower bytes of a row of weights.
const BYTE_WORDS: usize = BLOCK / CODES;
/// Vectors of a step of either operand: positions of keys, columns of values.
const VECTORS: usize = BLOCK / LANES;
const _: () = assert!(BLOCK == COLUMNS);

/// The operand that is signed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signed {
    Rows,
    Vectors,
}

/// Adds products of `steps` words of `M` rows and `C` vectors. Row `r`'s word of
/// step `s` is `rows[r · ROW + s · STEP]`.
#[inline(always)]
unsafe fn dots<const M: usize, const C: usize, const ROW: usize, const STEP: usize>(
    sums: &mut [[__m512i; C]; M],
    signed: Signed,
    rows: *const u32,
    vectors: *const u32,
    steps: usize,
) {
    for step in 0..steps {
        for c in 0..C {
            // SAFETY: the caller's promise: rows and vectors have these steps.
            unsafe {
                let at = (step * VECTORS + c) * LANES;
                let vector = _mm512_loadu_si512(vectors.add(at).cast());
                for r in 0..M {
                    let row = rows.add(r * ROW + step * STEP).cast::<i32>();
                    let row = _mm512_set1_epi32(*row);
                    sums[r][c] = match signed {
                        Signed::Rows => _mm512_dpbusd_epi32(sums[r][c], vector, row),
                        Signed::Vectors => _mm512_dpbusd_epi32(sums[r][c], row, vector),
                    };
                }
            }
        }
    }
}

/// Products like [`dots`], of rows that have an upper and a lower byte. The lower bytes lie
/// `lower` words behind the upper ones.
#[inline(always)]
unsafe fn dots_of_words<const M: usize, const C: usize, const ROW: usize, const STEP: usize>(
    signed: Signed,
    rows: *const u32,
    lower: usize,
    vectors: *const u32,
    steps: usize,
) -> [[__m512i; C]; M] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); C]; M];
        dots::<M, C, ROW, STEP>(&mut sums, signed, rows, vectors, steps);
        for r in 0..M {
            for c in 0..C {
                sums[r][c] = _mm512_slli_epi32::<8>(sums[r][c]);
            }
        }
        dots::<M, C, ROW, STEP>(&mut sums, signed, rows.add(lower), vectors, steps);
        sums
    }
}

/// See [`ScoresFn`], for `M` rows and `C` times 16 positions at once. Sums with offsets may
/// overflow on the way; the final sums without them do not: they are at most 32,512 · 127 ·
/// 512.
///
/// # Safety
/// The machine runs AVX-512 with VNNI; queries and scores have `M` rows.
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn scores<const M: usize, const C: usize>(
    queries: *const u32,
    keys: *const u32,
    words: usize,
    count: usize,
    scores: *mut [f32; BLOCK],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = queries.add(2 * words * M).cast::<f32>();
        let undo = scales.add(M).cast::<i32>();
        for first in (0..count).step_by(C * LANES) {
            let keys = keys.add(first);
            let sums = dots_of_words::<M, C, 1, M>(Signed::Rows, queries, words * M, keys, words);
            for r in 0..M {
                let scale = _mm512_set1_ps(*scales.add(r));
                let undo = _mm512_set1_epi32(*undo.add(r));
                for c in 0..C {
                    let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(sums[r][c], undo));
                    let to = (*scores.add(r)).as_mut_ptr().add(first + c * LANES);
                    _mm512_storeu_ps(to, _mm512_mul_ps(sum, scale));
                }
            }
        }
    }
}

/// See [`SumsFn`], for `M` rows and `C` times 16 columns at once.
///
/// # Safety
/// The machine runs AVX-512 with VNNI; weights, `worth` and `acc` have `M` rows.
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn sums<const M: usize, const C: usize>(
    weights: *const Bytes,
    worth: *const f32,
    values: *const u32,
    count: usize,
    head_dim: usize,
    acc: *mut f32,
    width: usize,
) {
    let steps = count.div_ceil(CODES);
    let weights = weights.cast::<u32>();
    for first in (0..head_dim).step_by(C * LANES) {
        let (part, column) = (first / COLUMNS, first % COLUMNS);
        // SAFETY: the caller's promise; parts of values hold 64 positions.
        unsafe {
            let values = values.add(part * BYTE_WORDS * COLUMNS + column);
            let sums = dots_of_words::<M, C, { 2 * BYTE_WORDS }, 1>(
                Signed::Vectors,
                weights,
                BYTE_WORDS,
                values,
                steps,
            );
            for r in 0..M {
                let worth = _mm512_set1_ps(*worth.add(r));
                for c in 0..C {
                    let at = acc.add(r * width + first + c * LANES);
                    let sum = _mm512_cvtepi32_ps(sums[r][c]);
                    _mm512_storeu_ps(at, _mm512_fmadd_ps(sum, worth, _mm512_loadu_ps(at)));
                }
            }
        }
    }
}

/// Lists the kernels for 1, 2, … rows. Each handles as many vectors at once as registers
/// hold sums of.
macro_rules! table {
    ($function:ident: $($m:literal $c:literal),*) => { [$($function::<$m, $c>),*] };
}

pub(super) static SCORES: [ScoresFn; ROWS] = table!(scores:
    1 4, 2 4, 3 4, 4 4, 5 4, 6 4, 7 4, 8 2, 9 2, 10 2, 11 2, 12 2);
pub(super) static SUMS: [SumsFn; ROWS] = table!(sums:
    1 4, 2 4, 3 4, 4 4, 5 4, 6 4, 7 4, 8 2, 9 2, 10 2, 11 2, 12 2);
