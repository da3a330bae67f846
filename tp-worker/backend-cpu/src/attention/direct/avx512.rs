//! AVX-512: 16 lanes are a register.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_srai_epi32,
    _mm512_storeu_ps,
};

use super::format::{Bf16, F32, Int8, Simd};
use super::kernel::direct;
use crate::attention::transpose::{LANES, avx512};

pub(super) struct Avx512;

impl Simd for Avx512 {
    type Sum = __m512;
    type Words = __m512i;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, sum: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, sum) }
    }
    #[inline(always)]
    unsafe fn quarter(rows: &[*const u32; LANES], word: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe { avx512::quarter(rows, word) }
    }
    #[inline(always)]
    unsafe fn words(from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn codes(from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
            _mm512_castps_si512(_mm512_cvtepi32_ps(codes))
        }
    }
    #[inline(always)]
    unsafe fn low(words: __m512i) -> __m512i {
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_slli_epi32::<16>(words) }
    }
    #[inline(always)]
    unsafe fn high(words: __m512i) -> __m512i {
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())) }
    }
    #[inline(always)]
    unsafe fn code(words: __m512i, index: usize) -> __m512i {
        // SAFETY: the caller runs AVX-512.
        unsafe {
            let shifted = match index {
                0 => _mm512_slli_epi32::<24>(words),
                1 => _mm512_slli_epi32::<16>(words),
                2 => _mm512_slli_epi32::<8>(words),
                _ => words,
            };
            let code = _mm512_srai_epi32::<24>(shifted);
            _mm512_castps_si512(_mm512_cvtepi32_ps(code))
        }
    }
    #[inline(always)]
    unsafe fn fma<const ROWS: usize>(sum: __m512, input: *const u32, words: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            _mm512_fmadd_ps(
                _mm512_set1_ps(*input.cast()),
                _mm512_castsi512_ps(words),
                sum,
            )
        }
    }
}

// As many sums as registers hold beside the operands.
direct!(F32_ROWS in f32_rows: F32<Avx512>, Plain,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    [1 2 3 4 5 6 7 8 : 1],
    [1 2 2, 2 2 2, 3 2 2, 4 2 2, 5 2 2, 6 2 2, 7 1 2, 8 1 2, 9 1 2, 10 1 2, 11 1 2, 12 1 2]);
direct!(BF16_ROWS in bf16_rows: Bf16<Avx512>, EvenOdd,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    [1 2 3 4 5 6 7 8 : 1],
    [1 2 2, 2 2 2, 3 2 2, 4 2 2, 5 2 2, 6 2 2, 7 1 2, 8 1 2, 9 1 2, 10 1 2, 11 1 2, 12 1 2]);
direct!(INT8_ROWS in int8_rows: Int8<Avx512>, Plain,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    [1 2 3 4 5 6 7 8 : 1],
    [1 2 2, 2 2 2, 3 2 2, 4 2 2, 5 2 2, 6 2 2, 7 1 2, 8 1 2, 9 1 2, 10 1 2, 11 1 2, 12 1 2]);
