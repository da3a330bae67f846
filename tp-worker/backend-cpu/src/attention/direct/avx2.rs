//! AVX2: 16 lanes are two registers.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_srai_epi32,
    _mm256_storeu_ps,
};

use super::format::{Bf16, F32, Int8, Simd};
use super::kernel::direct;
use crate::attention::transpose::{LANES, avx2};
use crate::gemm::{FEW_ROWS, multiply_add};

pub(super) struct Avx2;

// Helpers are functions, not closures, which would not be compiled for AVX2.

/// Whole numbers as f32.
#[inline(always)]
unsafe fn float(x: __m256i) -> __m256i {
    // SAFETY: the caller runs AVX2.
    unsafe { _mm256_castps_si256(_mm256_cvtepi32_ps(x)) }
}

/// One code of each word as f32.
#[inline(always)]
unsafe fn byte(words: __m256i, index: usize) -> __m256i {
    // SAFETY: the caller runs AVX2.
    unsafe {
        let shifted = match index {
            0 => _mm256_slli_epi32::<24>(words),
            1 => _mm256_slli_epi32::<16>(words),
            2 => _mm256_slli_epi32::<8>(words),
            _ => words,
        };
        float(_mm256_srai_epi32::<24>(shifted))
    }
}

impl Simd for Avx2 {
    type Sum = [__m256; 2];
    type Words = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> [__m256; 2] {
        // SAFETY: the caller runs AVX2.
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, sum: [__m256; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to, sum[0]);
            _mm256_storeu_ps(to.add(8), sum[1]);
        }
    }
    #[inline(always)]
    unsafe fn quarter(rows: &[*const u32; LANES], word: usize) -> [[__m256i; 2]; 4] {
        // SAFETY: the caller's promise.
        unsafe { avx2::both_quarters(rows, word) }
    }
    #[inline(always)]
    unsafe fn words(from: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn codes(from: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))),
                float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn low(words: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller runs AVX2.
        unsafe {
            [
                _mm256_slli_epi32::<16>(words[0]),
                _mm256_slli_epi32::<16>(words[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn high(words: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller runs AVX2.
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            [
                _mm256_and_si256(words[0], mask),
                _mm256_and_si256(words[1], mask),
            ]
        }
    }
    #[inline(always)]
    unsafe fn code(words: [__m256i; 2], index: usize) -> [__m256i; 2] {
        // SAFETY: the caller runs AVX2.
        unsafe { [byte(words[0], index), byte(words[1], index)] }
    }
    #[inline(always)]
    unsafe fn fma<const ROWS: usize>(
        sum: [__m256; 2],
        input: *const u32,
        words: [__m256i; 2],
    ) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let words = [_mm256_castsi256_ps(words[0]), _mm256_castsi256_ps(words[1])];
            // Fewer rows leave the compiler registers, and need no addresses of their own.
            if ROWS > FEW_ROWS {
                return multiply_add(sum, input, words);
            }
            let input = _mm256_set1_ps(*input.cast());
            [
                _mm256_fmadd_ps(input, words[0], sum[0]),
                _mm256_fmadd_ps(input, words[1], sum[1]),
            ]
        }
    }
}

// As many sums as registers hold beside the operands. Keys of bf16 are turned around many
// steps at once: otherwise the compiler keeps them in memory one by one. Keys of int8 take
// longer that way; keys of f32 were not measured.
direct!(F32_ROWS in f32_rows: F32<Avx2>, Plain, #[target_feature(enable = "avx2,fma")]
    [1 2 3 4 5 6 : 1], [1 2 2, 2 1 2, 3 1 2, 4 1 1, 5 1 1, 6 1 1]);
direct!(BF16_ROWS in bf16_rows: Bf16<Avx2>, EvenOdd, #[target_feature(enable = "avx2,fma")]
    [1 2 3 4 5 6 : 8], [1 2 2, 2 1 2, 3 1 2, 4 1 1, 5 1 1, 6 1 1]);
direct!(INT8_ROWS in int8_rows: Int8<Avx2>, Plain, #[target_feature(enable = "avx2,fma")]
    [1 2 3 4 5 6 : 1], [1 2 2, 2 1 2, 3 1 2, 4 1 1, 5 1 1, 6 1 1]);
