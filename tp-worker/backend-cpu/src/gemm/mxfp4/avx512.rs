//! AVX-512 tiles of 4-bit floats.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm512_castsi512_ps, _mm512_cvtepu8_epi32, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_max_epu32, _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_set1_epi32,
    _mm512_slli_epi32, _mm512_srli_epi32,
};

use super::scalar::{LEAST, VALUES};
use super::{Expand, Kernels, tile, widen_steps};
use crate::gemm::avx512::{F32, TILES_F32};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

impl Expand for F32 {
    type Codes = __m512i;

    #[inline(always)]
    unsafe fn codes(from: *const u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    /// Moves exponents to their place in a 32-bit float. The least power is subnormal there.
    #[inline(always)]
    unsafe fn powers(from: *const u8) -> __m512 {
        // SAFETY: the caller runs AVX-512, and its promise.
        unsafe {
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let least = _mm512_set1_epi32(LEAST.cast_signed());
            let bits = _mm512_max_epu32(_mm512_slli_epi32::<23>(exponents), least);
            _mm512_castsi512_ps(bits)
        }
    }

    /// Looks the lowest four bits of each word up in a register.
    #[inline(always)]
    unsafe fn values(codes: __m512i, powers: __m512) -> __m512 {
        // SAFETY: the caller runs AVX-512.
        unsafe {
            let table = _mm512_loadu_ps(VALUES.as_ptr());
            _mm512_mul_ps(_mm512_permutexvar_ps(codes, table), powers)
        }
    }

    #[inline(always)]
    unsafe fn next(codes: __m512i) -> __m512i {
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_srli_epi32::<4>(codes) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn mxfp4_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { tile::<F32, M, P, H>(work) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn widen(narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<F32>(narrow, wide) }
}

/// Tables with panels to stream at once.
macro_rules! tables {
    ($input:ident, [$($stream:tt)*]) => {
        tiles!(
            $input, mxfp4_tile:
            [1 2 3 4 5 6 7 8 9 10 11 12],
            [$($stream)*],
            [2 2 2 2 2 2 2 2 2 2 2 2],
            TILES_F32
        )
    };
}

static EXACT: Tiles = tables!(Groups, [1 2 3 : 4 4 4]);
static ROUNDED: Tiles = tables!(RoundedGroups, [1 2 3 : 4 4 4]);
/// Tiles for panels that come faster one by one.
pub(super) static EXACT_ONE_BY_ONE: Tiles = tables!(Groups, [1 2 3 4 5 : 1 1 1 1 1]);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    widen_rounded: None,
};
