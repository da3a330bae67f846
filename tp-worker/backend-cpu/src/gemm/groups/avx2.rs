//! AVX2, with AVX-VNNI and without it: 16 lanes are two registers.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi32,
    _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_shuffle_epi8, _mm256_slli_epi32,
};

use super::expand::{Scales, expand};
use super::kernels::kernels;
use super::{GroupLanes, Layout};
use crate::gemm::quantized::Lanes;
use crate::gemm::quantized::avx2::{Plain, Vnni};

/// Operations that lanes with and without AVX-VNNI share.
macro_rules! common {
    () => {
        #[inline(always)]
        unsafe fn word(from: *const u32) -> [__m256i; 2] {
            // SAFETY: the caller's promise.
            [unsafe { _mm256_set1_epi32(from.read().cast_signed()) }; 2]
        }
        #[inline(always)]
        unsafe fn halves(words: [__m256i; 2]) -> [[__m256i; 2]; 2] {
            // SAFETY: the caller's promise.
            unsafe { Self::int4(words) }
        }
        #[inline(always)]
        unsafe fn entries(codes: [__m256i; 2], table: *const u8) -> [__m256i; 2] {
            // SAFETY: the caller's promise.
            codes.map(|codes| unsafe {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
                _mm256_shuffle_epi8(table, codes)
            })
        }
        #[inline(always)]
        unsafe fn join(high: [__m256i; 2], low: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: the caller runs AVX2.
            [0, 1].map(|i| unsafe { _mm256_add_epi32(_mm256_slli_epi32::<8>(high[i]), low[i]) })
        }
        #[inline(always)]
        unsafe fn floats(words: [__m256i; 2]) -> [__m256; 2] {
            // SAFETY: the caller runs AVX2.
            words.map(|words| unsafe { _mm256_cvtepi32_ps(words) })
        }
        #[inline(always)]
        unsafe fn float(from: *const f32) -> [__m256; 2] {
            // SAFETY: the caller's promise.
            [unsafe { _mm256_set1_ps(from.read()) }; 2]
        }
        #[inline(always)]
        unsafe fn f16(from: *const u8) -> [__m256; 2] {
            // SAFETY: the caller's promise; it runs conversions of 16-bit floats.
            [0, 16].map(|at| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast())) })
        }
        #[inline(always)]
        unsafe fn bfloat16(from: *const u8) -> [__m256; 2] {
            // SAFETY: the caller's promise.
            [0, 16].map(|at| unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            })
        }
        #[inline(always)]
        unsafe fn small(from: *const u8) -> [__m256; 2] {
            // SAFETY: the caller's promise.
            [0, 8].map(|at| unsafe {
                let bytes = _mm_loadl_epi64(from.add(at).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
            })
        }
        #[inline(always)]
        unsafe fn product(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the caller runs AVX2.
            [0, 1].map(|i| unsafe { _mm256_mul_ps(a[i], b[i]) })
        }
        #[inline(always)]
        unsafe fn add_product(acc: [__m256; 2], a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the caller runs AVX2.
            [0, 1].map(|i| unsafe { _mm256_fmadd_ps(a[i], b[i], acc[i]) })
        }
        #[inline(always)]
        unsafe fn expand(
            layout: &Layout,
            numbers: *const u8,
            halves: [usize; 2],
            room: *mut Scales,
        ) {
            // SAFETY: the caller's promise.
            unsafe { expand_avx2(layout, numbers, halves, room) }
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand_avx2(layout: &Layout, numbers: *const u8, halves: [usize; 2], room: *mut Scales) {
    // SAFETY: the caller's promise; compiled for AVX2.
    unsafe { expand::<Plain>(layout, numbers, halves, room) }
}

kernels!(
    vnni,
    #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
    Vnni,
    TABLES:
        [1 2 3 4 5 6] [1 : 1] [2 1 1 1 1 1],
        [1 2 3 4] [1 : 1] [1 1 1 1]
);

kernels!(
    plain,
    #[target_feature(enable = "avx2,fma,f16c")]
    Plain,
    TABLES:
        [1 2 3 4] [ : ] [2 1 1 1],
        [1 2 3] [ : ] [1 1 1]
);
