//! AVX-512 tiles; bf16 is widened in registers.

use std::arch::x86_64::{
    __m512, _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

/// Operations that both element types share.
macro_rules! common {
    () => {
        type Acc = __m512;
        type A = __m512;
        type B = __m512;

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
        unsafe fn store(to: *mut f32, acc: __m512) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to, acc) }
        }
        #[inline(always)]
        unsafe fn a(from: *const u32) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_ps(*from.cast::<f32>()) }
        }
        #[inline(always)]
        unsafe fn dot(acc: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller runs AVX-512.
            unsafe { _mm512_fmadd_ps(a, b, acc) }
        }
    };
}

pub(super) struct F32;

impl Dot for F32 {
    const INPUTS: usize = 1;
    common!();

    #[inline(always)]
    unsafe fn b(from: *const u32, _: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
}

struct Bf16;

impl Dot for Bf16 {
    const INPUTS: usize = 2;
    common!();

    #[inline(always)]
    unsafe fn b(from: *const u32, part: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            _mm512_castsi512_ps(if part == 0 {
                _mm512_slli_epi32::<16>(pairs)
            } else {
                _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
            })
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn f32_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { tile::<F32, M, P, H>(work) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P, H>(work) }
}

pub(crate) static TILES_F32: Tiles = tiles!(
    F32, f32_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 : 4 4 4],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);
/// Tiles like [`TILES_F32`], for panels that come faster one by one.
pub(crate) static TILES_F32_ONE_BY_ONE: Tiles = tiles!(
    F32, f32_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 : 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);
pub(crate) static TILES_BF16: Tiles = tiles!(
    Rounded, bf16_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 : 4 4 4],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);
