//! AVX2: 16 lanes are two registers. With AVX-VNNI one instruction multiplies and adds 32
//! pairs of bytes. Without it even and odd bytes are multiplied as 16-bit integers.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps,
    _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_slli_epi32,
    _mm256_sllv_epi32, _mm256_srai_epi16, _mm256_srai_epi32, _mm256_srli_epi16, _mm256_srli_epi32,
    _mm256_storeu_ps,
};

use super::int4::Int4;
use super::int8::Int8;
use super::{Lanes, tile};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

/// Operations that lanes with and without AVX-VNNI share.
macro_rules! common {
    () => {
        type Words = [__m256i; 2];
        type Bytes = __m256i;
        type Floats = [__m256; 2];

        #[inline(always)]
        unsafe fn words(from: *const u32) -> Self::Words {
            // SAFETY: the caller's promise.
            unsafe {
                [
                    _mm256_loadu_si256(from.cast()),
                    _mm256_loadu_si256(from.add(8).cast()),
                ]
            }
        }
        #[inline(always)]
        unsafe fn start(undo: *const u32) -> Self::Words {
            // SAFETY: the caller's promise.
            [unsafe { Self::bytes(undo) }; 2]
        }
        #[inline(always)]
        unsafe fn int8(words: Self::Words) -> Self::Words {
            words
        }
        #[inline(always)]
        unsafe fn bytes(from: *const u32) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { _mm256_set1_epi32(from.read().cast_signed()) }
        }
        #[inline(always)]
        unsafe fn bf16(words: Self::Words, half: usize) -> Self::Floats {
            // SAFETY: the caller runs AVX2.
            words.map(|words| unsafe {
                _mm256_castsi256_ps(if half == 0 {
                    _mm256_slli_epi32::<16>(words)
                } else {
                    _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()))
                })
            })
        }
        #[inline(always)]
        unsafe fn int4(words: Self::Words) -> [Self::Words; 2] {
            // SAFETY: the caller runs AVX2.
            unsafe {
                let low = _mm256_set1_epi8(0x0f);
                let high = words.map(|words| _mm256_srli_epi32::<4>(words));
                [words, high].map(|words| words.map(|words| _mm256_and_si256(words, low)))
            }
        }
        #[inline(always)]
        unsafe fn multipliers(words: Self::Words, part: usize) -> Self::Words {
            // SAFETY: the caller runs AVX2.
            words.map(|words| unsafe {
                let above = _mm256_set1_epi32(27 - 5 * part as i32);
                let signed = _mm256_srai_epi32::<27>(_mm256_sllv_epi32(words, above));
                _mm256_and_si256(signed, _mm256_set1_epi32(0xffff))
            })
        }
        #[inline(always)]
        unsafe fn add_multiple(
            sum: Self::Words,
            product: Self::Words,
            multiplier: Self::Words,
        ) -> Self::Words {
            // The multiplier's upper half is zero, so only lower halves count.
            // SAFETY: the caller runs AVX2.
            [0, 1].map(|i| unsafe {
                _mm256_add_epi32(sum[i], _mm256_madd_epi16(product[i], multiplier[i]))
            })
        }
        #[inline(always)]
        unsafe fn float12(words: Self::Words) -> Self::Floats {
            // SAFETY: the caller runs AVX2.
            words.map(|words| unsafe {
                let bits = _mm256_srli_epi32::<1>(words);
                _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7ff8_0000)))
            })
        }
        #[inline(always)]
        unsafe fn no_words() -> Self::Words {
            // SAFETY: the caller runs AVX2.
            unsafe { [_mm256_setzero_si256(); 2] }
        }
        #[inline(always)]
        unsafe fn zero() -> Self::Floats {
            // SAFETY: the caller runs AVX2.
            unsafe { [_mm256_setzero_ps(); 2] }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::Floats {
            // SAFETY: the caller's promise.
            unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, floats: Self::Floats) {
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(to, floats[0]);
                _mm256_storeu_ps(to.add(8), floats[1]);
            }
        }
        #[inline(always)]
        unsafe fn add_scaled(
            acc: Self::Floats,
            sum: Self::Words,
            scale: Self::Floats,
            factor: *const f32,
        ) -> Self::Floats {
            // SAFETY: the caller's promise.
            [0, 1].map(|i| unsafe {
                let scale = _mm256_mul_ps(scale[i], _mm256_set1_ps(factor.read()));
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), scale, acc[i])
            })
        }
    };
}

pub(in crate::gemm) struct Vnni;

impl Lanes for Vnni {
    common!();

    #[inline(always)]
    unsafe fn dot(sum: Self::Words, weights: Self::Words, inputs: __m256i) -> Self::Words {
        // SAFETY: the caller runs AVX-VNNI.
        [0, 1].map(|i| unsafe { _mm256_dpbusd_avx_epi32(sum[i], weights[i], inputs) })
    }
}

pub(in crate::gemm) struct Plain;

impl Lanes for Plain {
    common!();

    #[inline(always)]
    unsafe fn dot(sum: Self::Words, weights: Self::Words, inputs: __m256i) -> Self::Words {
        // SAFETY: the caller runs AVX2.
        unsafe {
            [
                dot_plain(sum[0], weights[0], inputs),
                dot_plain(sum[1], weights[1], inputs),
            ]
        }
    }
}

/// Eight lanes of [`Lanes::dot`]. A closure this large would not be inlined, and each of its
/// instructions would become a call.
///
/// # Safety
/// The conditions of [`Lanes`].
#[inline(always)]
unsafe fn dot_plain(sum: __m256i, weights: __m256i, inputs: __m256i) -> __m256i {
    // SAFETY: the caller runs AVX2.
    unsafe {
        let even = _mm256_madd_epi16(
            _mm256_and_si256(weights, _mm256_set1_epi16(0xff)),
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(inputs)),
        );
        let odd = _mm256_madd_epi16(
            _mm256_srli_epi16::<8>(weights),
            _mm256_srai_epi16::<8>(inputs),
        );
        _mm256_add_epi32(sum, _mm256_add_epi32(even, odd))
    }
}

#[target_feature(enable = "avxvnni,avx2,fma")]
unsafe fn int8_vnni<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-VNNI.
    unsafe { tile::<Int8, Vnni, M, P, H>(work) }
}

#[target_feature(enable = "avxvnni,avx2,fma")]
unsafe fn int4_vnni<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-VNNI.
    unsafe { tile::<Int4, Vnni, M, P, H>(work) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn int8_plain<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX2.
    unsafe { tile::<Int8, Plain, M, P, H>(work) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn int4_plain<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX2.
    unsafe { tile::<Int4, Plain, M, P, H>(work) }
}

pub(super) static INT8_VNNI: Tiles =
    tiles!(Integers, int8_vnni: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1]);
pub(super) static INT8_PLAIN: Tiles = tiles!(Integers, int8_plain: [1 2 3 4], [ : ], [2 1 1 1]);
pub(super) static INT4_VNNI: Tiles =
    tiles!(Integers, int4_vnni: [1 2 3 4 5 6], [ : ], [2 2 1 1 1 1], INT8_VNNI);
pub(super) static INT4_PLAIN: Tiles =
    tiles!(Integers, int4_plain: [1 2 3 4], [ : ], [2 1 1 1], INT8_PLAIN);
