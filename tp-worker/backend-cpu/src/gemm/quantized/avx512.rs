//! AVX-512: with VNNI one instruction multiplies and adds 64 pairs of bytes. Without it even
//! and odd bytes are multiplied as 16-bit integers.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps,
    _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_madd_epi16, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi16, _mm512_slli_epi32,
    _mm512_sllv_epi32, _mm512_srai_epi16, _mm512_srai_epi32, _mm512_srli_epi16, _mm512_srli_epi32,
    _mm512_storeu_ps,
};

use super::blocks::Undo;
use super::int4::Int4;
use super::int8::Int8;
use super::{Lanes, tile};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

/// Operations that lanes with and without VNNI share.
macro_rules! common {
    () => {
        type Words = __m512i;
        type Bytes = __m512i;
        type Floats = __m512;

        #[inline(always)]
        unsafe fn words(from: *const u32) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        unsafe fn start(undo: *const u32) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_epi32(undo.read().cast_signed()) }
        }
        #[inline(always)]
        unsafe fn int8(words: Self::Words) -> Self::Words {
            words
        }
        #[inline(always)]
        unsafe fn bytes(from: *const u32) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_epi32(from.read().cast_signed()) }
        }
        #[inline(always)]
        unsafe fn bf16(words: __m512i, half: usize) -> __m512 {
            // SAFETY: the caller runs AVX-512.
            unsafe {
                _mm512_castsi512_ps(if half == 0 {
                    _mm512_slli_epi32::<16>(words)
                } else {
                    _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
                })
            }
        }
        #[inline(always)]
        unsafe fn int4(words: __m512i) -> [__m512i; 2] {
            // SAFETY: the caller runs AVX-512.
            unsafe {
                let low = _mm512_set1_epi8(0x0f);
                let high = _mm512_srli_epi32::<4>(words);
                [_mm512_and_si512(words, low), _mm512_and_si512(high, low)]
            }
        }
        #[inline(always)]
        unsafe fn multipliers(words: __m512i, part: usize) -> __m512i {
            // SAFETY: the caller runs AVX-512.
            unsafe {
                let above = _mm512_set1_epi32(27 - 5 * part as i32);
                let signed = _mm512_srai_epi32::<27>(_mm512_sllv_epi32(words, above));
                _mm512_and_si512(signed, _mm512_set1_epi32(0xffff))
            }
        }
        #[inline(always)]
        unsafe fn float12(words: __m512i) -> __m512 {
            // SAFETY: the caller runs AVX-512.
            unsafe {
                let bits = _mm512_srli_epi32::<1>(words);
                _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0x7ff8_0000)))
            }
        }
        #[inline(always)]
        unsafe fn no_words() -> __m512i {
            // SAFETY: the caller runs AVX-512.
            unsafe { _mm512_setzero_si512() }
        }
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
        unsafe fn store(to: *mut f32, floats: __m512) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to, floats) }
        }
        #[inline(always)]
        unsafe fn add_scaled(
            acc: __m512,
            sum: __m512i,
            scale: __m512,
            factor: *const f32,
        ) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(factor.read()));
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc)
            }
        }
    };
}

pub(in crate::gemm) struct Vnni;

impl Undo for Vnni {
    #[inline(always)]
    unsafe fn undo(sums: __m512i, undo: *const u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(sums, Self::start(undo)) }
    }
}

impl Lanes for Vnni {
    common!();

    #[inline(always)]
    unsafe fn dot(sum: __m512i, weights: __m512i, inputs: __m512i) -> __m512i {
        // SAFETY: the caller runs AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sum, weights, inputs) }
    }
    #[inline(always)]
    unsafe fn add_multiple(sum: __m512i, product: __m512i, multiplier: __m512i) -> __m512i {
        // The multiplier's upper half is zero, so only lower halves count.
        // SAFETY: the caller runs AVX-512 VNNI.
        unsafe { _mm512_dpwssd_epi32(sum, product, multiplier) }
    }
}

pub(in crate::gemm) struct Plain;

impl Lanes for Plain {
    common!();

    #[inline(always)]
    unsafe fn dot(sum: __m512i, weights: __m512i, inputs: __m512i) -> __m512i {
        // SAFETY: the caller runs AVX-512.
        unsafe {
            let even = _mm512_madd_epi16(
                _mm512_and_si512(weights, _mm512_set1_epi16(0xff)),
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(inputs)),
            );
            let odd = _mm512_madd_epi16(
                _mm512_srli_epi16::<8>(weights),
                _mm512_srai_epi16::<8>(inputs),
            );
            _mm512_add_epi32(sum, _mm512_add_epi32(even, odd))
        }
    }
    #[inline(always)]
    unsafe fn add_multiple(sum: __m512i, product: __m512i, multiplier: __m512i) -> __m512i {
        // The multiplier's upper half is zero, so only lower halves count.
        // SAFETY: the caller runs AVX-512.
        unsafe { _mm512_add_epi32(sum, _mm512_madd_epi16(product, multiplier)) }
    }
}

#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn int8_vnni<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512 VNNI.
    unsafe { tile::<Int8, Vnni, M, P, H>(work) }
}

#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn int4_vnni<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512 VNNI.
    unsafe { tile::<Int4, Vnni, M, P, H>(work) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn int8_plain<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { tile::<Int8, Plain, M, P, H>(work) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn int4_plain<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512.
    unsafe { tile::<Int4, Plain, M, P, H>(work) }
}

pub(super) static INT8_VNNI: Tiles = tiles!(
    Integers, int8_vnni:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 : 4 2 2 2 2],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);
pub(super) static INT4_VNNI: Tiles = tiles!(
    Integers, int4_vnni:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 : 4 2 2 2 2],
    [2 2 2 2 2 2 2 2 2 2 2 2], INT8_VNNI
);
/// Tiles like [`INT8_VNNI`], for panels that come faster one by one.
pub(super) static INT8_VNNI_ONE_BY_ONE: Tiles = tiles!(
    Integers, int8_vnni:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 6 7 8 9 10 11 12 : 1 1 1 1 1 1 1 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);
/// Tiles like [`INT4_VNNI`], for panels that come faster one by one.
pub(super) static INT4_VNNI_ONE_BY_ONE: Tiles = tiles!(
    Integers, int4_vnni:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 6 7 8 9 10 11 12 : 1 1 1 1 1 1 1 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2], INT8_VNNI
);
pub(super) static INT8_PLAIN: Tiles = tiles!(
    Integers, int8_plain:
    [1 2 3 4 5 6 7 8],
    [1 2 3 : 2 2 2],
    [2 2 2 2 2 2 2 2]
);
pub(super) static INT4_PLAIN: Tiles = tiles!(
    Integers, int4_plain:
    [1 2 3 4 5 6 7 8],
    [1 2 3 : 2 2 2],
    [2 2 2 2 2 2 2 2], INT8_PLAIN
);
