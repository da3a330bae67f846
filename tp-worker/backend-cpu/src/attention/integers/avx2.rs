//! The products with AVX2: codes are widened to 16 bits, and every two products are added up
//! in 32 bits.

mod few;

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm256_add_epi32,
    _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256,
    _mm256_slli_epi16, _mm256_srai_epi16, _mm256_storeu_ps, _mm256_storeu_si256,
};

use super::super::cells::BLOCK;
use super::super::prefetch::Ahead;
use super::super::softmax::{Rows, whole};
use super::super::transpose::{LANES, avx2, keys_at};
use super::{Bytes, CODES, CpuKvCache, ScoresFn, SumsFn};
use crate::gemm::FEW_ROWS;
use crate::isa::Isa;

pub(super) use few::ROWS as FEW;

/// 32-bit lanes of a register; 16 positions or columns take two registers.
const WIDTH: usize = LANES / 2;
/// Words that are turned around at once.
const WORDS: usize = 4;
/// Codes in a word of 16-bit numbers.
const HALVES: usize = 2;

/// 16 sums, or 16 words.
type Lanes = [__m256i; 2];

/// The codes in words of four as 16-bit numbers: the even codes, then the odd ones.
#[inline(always)]
unsafe fn widened(words: Lanes) -> [Lanes; 2] {
    // SAFETY: the caller runs AVX2.
    unsafe {
        let even = [
            _mm256_slli_epi16::<8>(words[0]),
            _mm256_slli_epi16::<8>(words[1]),
        ];
        [upper(even), upper(words)]
    }
}

/// The upper byte of each 16 bits.
#[inline(always)]
unsafe fn upper(words: Lanes) -> Lanes {
    // SAFETY: the caller runs AVX2.
    unsafe {
        [
            _mm256_srai_epi16::<8>(words[0]),
            _mm256_srai_epi16::<8>(words[1]),
        ]
    }
}

/// 16 codes of a row, each beside the code of another row, as 16-bit numbers.
#[inline(always)]
unsafe fn woven(row: *const u8, other: *const u8) -> Lanes {
    // SAFETY: the caller's promise; it runs AVX2.
    unsafe {
        let row = _mm_loadu_si128(row.cast());
        let other = _mm_loadu_si128(other.cast());
        [
            _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(row, other)),
            _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(row, other)),
        ]
    }
}

/// `sums` plus the products of the two 16-bit numbers at `row` with the numbers of `b`. With
/// more than `EARLY` rows each row's numbers are loaded when they are needed, for the reason
/// that [`crate::gemm::multiply_add`] gives: the sums of six rows, `b` and two more take all
/// registers.
#[inline(always)]
unsafe fn multiply_add<const ROWS: usize, const EARLY: usize>(
    sums: Lanes,
    row: *const u32,
    b: Lanes,
) -> Lanes {
    // SAFETY: the caller's promise; it runs AVX2.
    unsafe {
        if ROWS > EARLY {
            return multiply_add_now(sums, row, b);
        }
        let row = _mm256_set1_epi32(row.read().cast_signed());
        [
            _mm256_add_epi32(sums[0], _mm256_madd_epi16(row, b[0])),
            _mm256_add_epi32(sums[1], _mm256_madd_epi16(row, b[1])),
        ]
    }
}

/// `sums` plus the same products for any number of rows; loads the numbers at `row` now.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_add_now(sums: Lanes, row: *const u32, b: Lanes) -> Lanes {
    let [mut low, mut high] = sums;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "vpbroadcastd {value}, dword ptr [{row}]",
            "vpmaddwd {product}, {value}, {b_low}",
            "vpmaddwd {value}, {value}, {b_high}",
            "vpaddd {low}, {low}, {product}",
            "vpaddd {high}, {high}, {value}",
            row = in(reg) row,
            b_low = in(ymm_reg) b[0],
            b_high = in(ymm_reg) b[1],
            value = out(ymm_reg) _,
            product = out(ymm_reg) _,
            low = inout(ymm_reg) low,
            high = inout(ymm_reg) high,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

#[inline(always)]
unsafe fn load(from: *const u32) -> Lanes {
    // SAFETY: the caller's promise; it runs AVX2.
    unsafe {
        [
            _mm256_loadu_si256(from.cast()),
            _mm256_loadu_si256(from.add(WIDTH).cast()),
        ]
    }
}

#[inline(always)]
unsafe fn store(to: *mut u32, lanes: Lanes) {
    // SAFETY: the caller's promise; it runs AVX2.
    unsafe {
        _mm256_storeu_si256(to.cast(), lanes[0]);
        _mm256_storeu_si256(to.add(WIDTH).cast(), lanes[1]);
    }
}

#[inline(always)]
unsafe fn zero() -> Lanes {
    // SAFETY: the caller runs AVX2.
    unsafe { [_mm256_setzero_si256(); 2] }
}

/// Writes 16 scores: sums times the value of the query's integer 1.
#[inline(always)]
unsafe fn store_scores(to: *mut f32, sums: Lanes, scale: f32) {
    // SAFETY: the caller's promise; it runs AVX2.
    unsafe {
        for (half, sum) in sums.into_iter().enumerate() {
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale));
            _mm256_storeu_ps(to.add(half * WIDTH), scaled);
        }
    }
}

/// Adds 16 sums times the value of the weights' integer 1.
#[inline(always)]
unsafe fn add_sums(to: *mut f32, sums: Lanes, worth: f32) {
    // SAFETY: the caller's promise; it runs AVX2.
    unsafe {
        for (half, sum) in sums.into_iter().enumerate() {
            let to = to.add(half * WIDTH);
            let sum = _mm256_cvtepi32_ps(sum);
            let sum = _mm256_fmadd_ps(sum, _mm256_set1_ps(worth), _mm256_loadu_ps(to));
            _mm256_storeu_ps(to, sum);
        }
    }
}

/// The word with a row's weights of positions `2 · pair` and `2 · pair + 1`.
#[inline(always)]
fn pair(weights: *const Bytes, row: usize, pair: usize) -> *const u32 {
    weights.wrapping_add(row).cast::<u32>().wrapping_add(pair)
}

/// Packs the codes of `rows` in words of two, `[words][64 positions]`: the even codes of
/// each four, then the odd ones, like [`super::Layout::Widened`]. Words past the rows' last
/// 16 positions keep their old content. Asks for the next block meanwhile.
///
/// # Safety
/// The machine runs AVX2; there are rows, which lie in the cache; `out` holds half a
/// word for each code of 64 rows.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn keys(cache: &CpuKvCache, rows: &[usize], out: *mut u32, ahead: &mut Ahead) {
    let (data, bytes) = cache.bytes();
    for (group, rows) in rows.chunks(LANES).enumerate() {
        let from = keys_at(rows, |row| data.wrapping_add(row * bytes));
        for word in (0..bytes / CODES).step_by(WORDS) {
            // SAFETY: rows lie in the cache and hold these words; `out` holds 64 rows of
            // twice as many.
            unsafe {
                for (i, words) in avx2::both_quarters(&from, word).into_iter().enumerate() {
                    for (half, lanes) in widened(words).into_iter().enumerate() {
                        let at = HALVES * (word + i) + half;
                        store(out.add(at * BLOCK + group * LANES), lanes);
                    }
                }
            }
        }
        ahead.fetch(cache, LANES);
    }
}

/// Packs the codes of two positions' values in a word, `[pairs of positions][head_dim]`. An
/// odd last position is beside itself: its partner's weight is zero.
///
/// # Safety
/// The conditions of [`keys`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn values(cache: &CpuKvCache, rows: &[usize], out: *mut u32, ahead: &mut Ahead) {
    let (data, bytes) = cache.bytes();
    let row = |row: usize| data.wrapping_add((row + cache.values_after()) * bytes);
    for (pair, rows) in rows.chunks(HALVES).enumerate() {
        let (first, second) = (row(rows[0]), row(rows[rows.len() - 1]));
        for column in (0..bytes).step_by(LANES) {
            // SAFETY: rows lie in the cache and hold these columns; `out` holds 64 rows.
            unsafe {
                let lanes = woven(first.add(column), second.add(column));
                store(out.add(pair * bytes + column), lanes);
            }
        }
        ahead.fetch(cache, HALVES);
    }
}

/// See [`ScoresFn`], for `M` rows. No sum overflows: sums are at most 32,512 · 127 · 512.
///
/// # Safety
/// The machine runs AVX2; queries and scores have `M` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn scores<const M: usize>(
    queries: *const u32,
    keys: *const u32,
    words: usize,
    count: usize,
    scores: *mut [f32; BLOCK],
) {
    let steps = words * CODES / HALVES;
    for position in (0..count).step_by(LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [zero(); M];
            for step in 0..steps {
                let key = load(keys.add(step * BLOCK + position));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = multiply_add::<M, FEW_ROWS>(*sum, queries.add(step * M + r), key);
                }
            }
            let scales = queries.add(steps * M).cast::<f32>();
            for (r, sum) in sums.into_iter().enumerate() {
                let to = (*scores.add(r)).as_mut_ptr().add(position);
                store_scores(to, sum, *scales.add(r));
            }
        }
    }
}

/// See [`SumsFn`], for `M` rows. No sum overflows: sums are at most 2¹⁵ · 127 · 64.
///
/// # Safety
/// The machine runs AVX2; weights, `worth` and sums have `M` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn sums<const M: usize>(
    weights: *const Bytes,
    worth: *const f32,
    values: *const u32,
    count: usize,
    head_dim: usize,
    acc: *mut f32,
    width: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for column in (0..head_dim).step_by(LANES) {
            let mut sums = [zero(); M];
            for at in 0..count.div_ceil(HALVES) {
                let value = load(values.add(at * head_dim + column));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = multiply_add::<M, FEW_ROWS>(*sum, pair(weights, r, at), value);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                add_sums(acc.add(r * width + column), sum, *worth.add(r));
            }
        }
    }
}

/// See [`super::WeighFn`]; integers stay whole.
///
/// # Safety
/// The machine runs AVX2.
pub(super) unsafe fn weigh(
    rows: Rows<'_>,
    scales: &[f32; BLOCK],
    out: &mut [Bytes],
    worth: &mut [f32],
) {
    whole::shorts(Isa::Avx2, rows, scales, out, worth);
}

/// Lists the kernels for as many rows as registers hold sums of.
macro_rules! table {
    ($function:ident) => {
        [
            $function::<1>,
            $function::<2>,
            $function::<3>,
            $function::<4>,
            $function::<5>,
            $function::<6>,
        ]
    };
}

pub(super) static SCORES: [ScoresFn; 6] = table!(scores);
pub(super) static SUMS: [SumsFn; 6] = table!(sums);
