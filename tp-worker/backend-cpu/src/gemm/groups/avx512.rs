//! AVX-512, with VNNI and without it.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_broadcast_i32x4,
    _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32,
    _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_shuffle_epi8, _mm512_slli_epi32,
};

use super::expand::{Scales, expand};
use super::kernels::kernels;
use super::{GroupLanes, Layout};
use crate::gemm::quantized::Lanes;
use crate::gemm::quantized::avx512::{Plain, Vnni};

/// Operations that lanes with and without VNNI share.
macro_rules! common {
    () => {
        #[inline(always)]
        unsafe fn word(from: *const u32) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_epi32(from.read().cast_signed()) }
        }
        #[inline(always)]
        unsafe fn halves(words: __m512i) -> [__m512i; 2] {
            // SAFETY: the caller's promise.
            unsafe { Self::int4(words) }
        }
        #[inline(always)]
        unsafe fn entries(codes: __m512i, table: *const u8) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast()));
                _mm512_shuffle_epi8(table, codes)
            }
        }
        #[inline(always)]
        unsafe fn join(high: __m512i, low: __m512i) -> __m512i {
            // SAFETY: the caller runs AVX-512.
            unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low) }
        }
        #[inline(always)]
        unsafe fn floats(words: __m512i) -> __m512 {
            // SAFETY: the caller runs AVX-512.
            unsafe { _mm512_cvtepi32_ps(words) }
        }
        #[inline(always)]
        unsafe fn float(from: *const f32) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_ps(from.read()) }
        }
        #[inline(always)]
        unsafe fn f16(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn bfloat16(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
        #[inline(always)]
        unsafe fn small(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn product(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller runs AVX-512.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn add_product(acc: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller runs AVX-512.
            unsafe { _mm512_fmadd_ps(a, b, acc) }
        }
        #[inline(always)]
        unsafe fn expand(
            layout: &Layout,
            numbers: *const u8,
            halves: [usize; 2],
            room: *mut Scales,
        ) {
            // SAFETY: the caller's promise.
            unsafe { expand_avx512(layout, numbers, halves, room) }
        }
    };
}

impl GroupLanes for Vnni {
    common!();
}

impl GroupLanes for Plain {
    common!();
}

/// One body for all tiles, which it would make twice as long.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn expand_avx512(
    layout: &Layout,
    numbers: *const u8,
    halves: [usize; 2],
    room: *mut Scales,
) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { expand::<Plain>(layout, numbers, halves, room) }
}

kernels!(
    vnni,
    #[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    Vnni,
    TABLES:
        [1 2 3 4 5 6 7 8 9 10 11 12]
        [1 2 3 4 5 : 4 2 2 2 2]
        [2 2 2 2 2 2 1 1 1 1 1 1],
        [1 2 3 4 5 6 7 8]
        [1 2 3 : 2 2 2]
        [2 2 2 2 1 1 1 1];
    ONE_BY_ONE:
        [1 2 3 4 5 6 7 8 9 10 11 12]
        [1 2 3 4 5 6 7 8 : 1 1 1 1 1 1 1 1]
        [2 2 2 2 2 2 1 1 1 1 1 1],
        [1 2 3 4 5 6 7 8]
        [1 2 3 4 : 1 1 1 1]
        [2 2 2 2 1 1 1 1]
);

kernels!(
    plain,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    Plain,
    TABLES:
        [1 2 3 4 5 6 7 8]
        [1 2 3 : 2 2 2]
        [2 2 2 2 1 1 1 1],
        [1 2 3 4 5 6]
        [1 2 : 2 2]
        [2 2 2 1 1 1]
);
