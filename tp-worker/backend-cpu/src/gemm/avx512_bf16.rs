//! AVX-512 tiles on `vdpbf16ps`.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

struct Bf16;

#[inline(always)]
fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of plain data.
    unsafe { std::mem::transmute(bits) }
}

impl Dot for Bf16 {
    const INPUTS: usize = 1;
    type Acc = __m512;
    type A = __m512bh;
    type B = __m512bh;

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
    unsafe fn a(from: *const u32) -> __m512bh {
        // SAFETY: the caller's promise.
        pairs(unsafe { _mm512_set1_epi32(*from.cast::<i32>()) })
    }
    #[inline(always)]
    unsafe fn b(from: *const u32, _: usize) -> __m512bh {
        // SAFETY: the caller's promise.
        pairs(unsafe { _mm512_loadu_si512(from.cast()) })
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, a: __m512bh, b: __m512bh) -> __m512 {
        // SAFETY: the caller runs AVX-512 BF16.
        unsafe { _mm512_dpbf16_ps(acc, a, b) }
    }
}

#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512 BF16.
    unsafe { tile::<Bf16, M, P, H>(work) }
}

pub(crate) static TILES_BF16: Tiles = tiles!(
    Pairs, bf16_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 6 7 8 9 10 11 12 : 1 1 1 1 1 1 1 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);
