//! AVX-512 tiles; bf16 is widened in registers.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

struct F32;

impl Dot for F32 {
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
    unsafe fn b(from: *const u32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, acc) }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}

struct Bf16;

/// The even and the odd values of 16 pairs.
#[inline(always)]
unsafe fn widen(pairs: __m512i) -> [__m512; 2] {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
            _mm512_castsi512_ps(high),
        ]
    }
}

impl Dot for Bf16 {
    type Acc = __m512;
    type A = [__m512; 2];
    type B = [__m512; 2];

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
    unsafe fn a(from: *const u32) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe { widen(_mm512_castps_si512(_mm512_set1_ps(*from.cast::<f32>()))) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe { widen(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, a: [__m512; 2], b: [__m512; 2]) -> __m512 {
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_fmadd_ps(a[1], b[1], _mm512_fmadd_ps(a[0], b[0], acc)) }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn f32_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { tile::<F32, M, P>(work) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn bf16_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P>(work) }
}

pub(crate) static TILES_F32: Tiles =
    tiles!(f32_tile: [1 2 3 4 5 6 7 8 9 10 11 12], [4 4 4 2 2 2 1 1 1 1 1 1]);
pub(crate) static TILES_BF16: Tiles =
    tiles!(bf16_tile: [1 2 3 4 5 6 7 8 9 10 11 12], [4 4 2 2 2 2 1 1 1 1 1 1]);
