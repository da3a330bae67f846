//! AVX2 tiles of 8-bit floats.

use std::arch::x86_64::{
    __m256, _mm_and_si128, _mm_cvtepi8_epi16, _mm_loadl_epi64, _mm_set1_epi16, _mm_slli_epi16,
    _mm256_cvtph_ps, _mm256_mul_ps,
};

use super::{Kernels, Widen, tile, widen_steps};
use crate::gemm::avx2::{F32, TILES_F32};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

/// Widens 8 codes: see AVX-512's.
#[inline(always)]
unsafe fn widen_half(codes: *const u8) -> __m256 {
    // SAFETY: the caller runs AVX2 with F16C, and its promise.
    unsafe {
        let codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(codes.cast()));
        let mask = _mm_set1_epi16(0xbf80_u16.cast_signed());
        _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16::<7>(codes), mask))
    }
}

impl Widen for F32 {
    #[inline(always)]
    unsafe fn widen(codes: *const u8, factors: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                _mm256_mul_ps(widen_half(codes), factors[0]),
                _mm256_mul_ps(widen_half(codes.add(8)), factors[1]),
            ]
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fp8_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX2 with F16C.
    unsafe { tile::<F32, M, P, H>(work) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen(scales: usize, narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<F32>(scales, narrow, wide) }
}

static EXACT: Tiles = tiles!(
    Groups, fp8_tile: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1], TILES_F32
);
static ROUNDED: Tiles = tiles!(
    RoundedGroups, fp8_tile: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1], TILES_F32
);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    pairs: None,
};
