//! AVX2 tiles of 4-bit floats.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_cvtepu8_epi32, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_epu32, _mm256_mul_ps,
    _mm256_permutevar8x32_ps, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_xor_si256,
};

use super::scalar::{LEAST, VALUES};
use super::{Expand, Kernels, tile, widen_steps};
use crate::gemm::avx2::{F32, TILES_F32};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

/// The powers of two of 8 exponents: see AVX-512's.
#[inline(always)]
unsafe fn powers_of_half(from: *const u8) -> __m256 {
    // SAFETY: the caller runs AVX2, and its promise.
    unsafe {
        let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
        let least = _mm256_set1_epi32(LEAST.cast_signed());
        let bits = _mm256_max_epu32(_mm256_slli_epi32::<23>(exponents), least);
        _mm256_castsi256_ps(bits)
    }
}

/// Looks the lowest three bits of each word up in a register, and adds the fourth as a sign.
#[inline(always)]
unsafe fn values_of_half(codes: __m256i, powers: __m256) -> __m256 {
    // SAFETY: the caller runs AVX2.
    unsafe {
        let magnitudes = _mm256_permutevar8x32_ps(_mm256_loadu_ps(VALUES.as_ptr()), codes);
        let sign = _mm256_set1_epi32(i32::MIN);
        let sign = _mm256_and_si256(_mm256_slli_epi32::<28>(codes), sign);
        let values = _mm256_xor_si256(_mm256_castps_si256(magnitudes), sign);
        _mm256_mul_ps(_mm256_castsi256_ps(values), powers)
    }
}

impl Expand for F32 {
    type Codes = [__m256i; 2];

    #[inline(always)]
    unsafe fn codes(from: *const u32) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(8).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn powers(from: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [powers_of_half(from), powers_of_half(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn values(codes: [__m256i; 2], powers: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                values_of_half(codes[0], powers[0]),
                values_of_half(codes[1], powers[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn next(codes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller runs AVX2.
        unsafe {
            [
                _mm256_srli_epi32::<4>(codes[0]),
                _mm256_srli_epi32::<4>(codes[1]),
            ]
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn mxfp4_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX2.
    unsafe { tile::<F32, M, P, H>(work) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn widen(narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<F32>(narrow, wide) }
}

static EXACT: Tiles = tiles!(
    Groups, mxfp4_tile: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1], TILES_F32
);
static ROUNDED: Tiles = tiles!(
    RoundedGroups, mxfp4_tile: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1], TILES_F32
);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    widen_rounded: None,
};
