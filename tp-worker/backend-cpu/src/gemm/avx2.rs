//! AVX2 tiles: 16 lanes are two registers; bf16 is widened in registers.

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_and_si256, _mm256_castsi256_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

struct F32;

impl Dot for F32 {
    type Acc = [__m256; 2];
    type A = __m256;
    type B = [__m256; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        // SAFETY: the caller runs AVX2.
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Acc {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, acc: Self::Acc) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to, acc[0]);
            _mm256_storeu_ps(to.add(8), acc[1]);
        }
    }
    #[inline(always)]
    unsafe fn a(from: *const u32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_ps(*from.cast::<f32>()) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe { Self::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::Acc, a: __m256, b: Self::B) -> Self::Acc {
        // SAFETY: the caller runs AVX2 with FMA.
        unsafe {
            [
                _mm256_fmadd_ps(a, b[0], acc[0]),
                _mm256_fmadd_ps(a, b[1], acc[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}

struct Bf16;

#[inline(always)]
unsafe fn low(pairs: __m256i) -> __m256 {
    // SAFETY: the caller runs AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)) }
}

#[inline(always)]
unsafe fn high(pairs: __m256i) -> __m256 {
    // SAFETY: the caller runs AVX2.
    unsafe {
        let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
        _mm256_castsi256_ps(_mm256_and_si256(pairs, mask))
    }
}

impl Dot for Bf16 {
    type Acc = [__m256; 2];
    type A = __m256i;
    type B = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        // SAFETY: the caller runs AVX2.
        unsafe { F32::zero() }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Acc {
        // SAFETY: the caller's promise.
        unsafe { F32::load(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, acc: Self::Acc) {
        // SAFETY: the caller's promise.
        unsafe { F32::store(to, acc) }
    }
    #[inline(always)]
    unsafe fn a(from: *const u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_epi32(*from.cast::<i32>()) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe {
            [
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(8).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::Acc, a: __m256i, b: Self::B) -> Self::Acc {
        // SAFETY: the caller runs AVX2 with FMA.
        unsafe {
            let even = F32::dot(acc, low(a), [low(b[0]), low(b[1])]);
            F32::dot(even, high(a), [high(b[0]), high(b[1])])
        }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u32) {
        // SAFETY: a prefetch never faults.
        unsafe { F32::prefetch(from) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn f32_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX2.
    unsafe { tile::<F32, M, P>(work) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn bf16_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P>(work) }
}

pub(crate) static TILES_F32: Tiles = tiles!(f32_tile: [1 2 3], [2 1 1]);
pub(crate) static TILES_BF16: Tiles = tiles!(bf16_tile: [1 2 3], [2 1 1]);
