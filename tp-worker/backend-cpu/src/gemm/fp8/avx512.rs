//! AVX-512 tiles of 8-bit floats.

use std::arch::x86_64::{
    __m512, _mm_loadu_si128, _mm256_and_si256, _mm256_cvtepi8_epi16, _mm256_set1_epi16,
    _mm256_slli_epi16, _mm512_cvtph_ps, _mm512_mul_ps,
};

use super::{Kernels, Widen, tile, widen_steps};
use crate::gemm::avx512::{F32, TILES_F32};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

/// Widens 16 codes to their values over [`super::CODE_SCALE`]: moves a code to the place of a 16-bit
/// float, which has the same mantissa and a longer exponent. Its conversion takes subnormal numbers
/// without delay.
///
/// # Safety
/// Compiled for AVX-512; 16 codes are readable.
#[inline(always)]
pub(super) unsafe fn values(codes: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(codes.cast()));
        // The sign is in all upper bits; the highest stays.
        let mask = _mm256_set1_epi16(0xbf80_u16.cast_signed());
        let halves = _mm256_and_si256(_mm256_slli_epi16::<7>(codes), mask);
        _mm512_cvtph_ps(halves)
    }
}

impl Widen for F32 {
    #[inline(always)]
    unsafe fn widen(codes: *const u8, factors: __m512) -> __m512 {
        // SAFETY: the caller runs AVX-512, and its promise.
        unsafe { _mm512_mul_ps(values(codes), factors) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn fp8_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { tile::<F32, M, P, H>(work) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn widen(scales: usize, narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<F32>(scales, narrow, wide) }
}

/// Tables for panels that stream several at once, or come faster one by one.
macro_rules! tables {
    ($input:ident, [$($stream:tt)*]) => {
        tiles!(
            $input, fp8_tile:
            [1 2 3 4 5 6 7 8 9 10 11 12],
            [$($stream)*],
            [2 2 2 2 2 2 2 2 2 2 2 2],
            TILES_F32
        )
    };
}

static EXACT: Tiles = tables!(Groups, [1 2 3 : 4 4 4]);
static ROUNDED: Tiles = tables!(RoundedGroups, [1 2 3 : 4 4 4]);
static EXACT_ONE_BY_ONE: Tiles = tables!(Groups, [1 2 3 4 5 : 1 1 1 1 1]);
static ROUNDED_ONE_BY_ONE: Tiles = tables!(RoundedGroups, [1 2 3 4 5 : 1 1 1 1 1]);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    pairs: None,
};
/// Kernels like [`KERNELS`], for panels that come faster one by one.
pub(super) const ONE_BY_ONE: Kernels = Kernels {
    tiles: [&EXACT_ONE_BY_ONE, &ROUNDED_ONE_BY_ONE],
    widen,
    pairs: None,
};
