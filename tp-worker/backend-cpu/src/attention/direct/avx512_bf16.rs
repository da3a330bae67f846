//! AVX-512 with `vdpbf16ps`. Operands are pairs of bf16: two columns of a key, or one column
//! of two values.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_mask_blend_epi16,
    _mm512_or_si512, _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32,
};

use super::avx512::Avx512;
use super::format::{Format, Simd};
use super::kernel::direct;
use crate::attention::transpose::LANES;

/// Mask of the upper halves of words.
const ODD: u32 = 0xaaaa_aaaa;

struct Bf16;
struct Int8;

/// Pairs of bf16, made of f32 values that bf16 holds exactly.
#[inline(always)]
fn pair(low: __m512i, high: __m512i) -> __m512i {
    // SAFETY: inlined into functions compiled for AVX-512.
    unsafe { _mm512_or_si512(_mm512_srli_epi32::<16>(low), Avx512::high(high)) }
}

#[inline(always)]
unsafe fn dot_pairs(sum: __m512, input: *const u32, part: __m512i) -> __m512 {
    // SAFETY: the caller's promise; both types are 64 bytes of plain data.
    unsafe {
        let pairs = |bits: __m512i| std::mem::transmute::<__m512i, __m512bh>(bits);
        _mm512_dpbf16_ps(sum, pairs(_mm512_set1_epi32(*input.cast())), pairs(part))
    }
}

impl Format for Bf16 {
    type Simd = Avx512;
    const KEY_PARTS: usize = 1;
    const POSITIONS: usize = 2;

    #[inline(always)]
    unsafe fn key(words: __m512i, _: usize) -> __m512i {
        words
    }
    #[inline(always)]
    unsafe fn value(row: *const u8, next: *const u8, column: usize, half: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let first = _mm512_loadu_si512(row.add(2 * column).cast());
            let second = _mm512_loadu_si512(next.add(2 * column).cast());
            if half == 0 {
                _mm512_mask_blend_epi16(ODD, first, _mm512_slli_epi32::<16>(second))
            } else {
                _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(first), second)
            }
        }
    }
    #[inline(always)]
    unsafe fn dot<const ROWS: usize>(sum: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { dot_pairs(sum, input, part) }
    }
}

impl Format for Int8 {
    type Simd = Avx512;
    const KEY_PARTS: usize = 2;
    const POSITIONS: usize = 2;

    #[inline(always)]
    unsafe fn key(words: __m512i, part: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            pair(
                Avx512::code(words, 2 * part),
                Avx512::code(words, 2 * part + 1),
            )
        }
    }
    #[inline(always)]
    unsafe fn value(row: *const u8, next: *const u8, column: usize, half: usize) -> __m512i {
        let at = column + half * LANES;
        // SAFETY: the caller's promise.
        unsafe { pair(Avx512::codes(row.add(at)), Avx512::codes(next.add(at))) }
    }
    #[inline(always)]
    unsafe fn dot<const ROWS: usize>(sum: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { dot_pairs(sum, input, part) }
    }
}

direct!(BF16_ROWS in bf16_rows: Bf16, EvenOdd,
    #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    [1 2 3 4 5 6 7 8 : 1],
    [1 2 2, 2 2 2, 3 2 2, 4 2 2, 5 2 2, 6 2 2, 7 1 2, 8 1 2, 9 1 2, 10 1 2, 11 1 2, 12 1 2]);
direct!(INT8_ROWS in int8_rows: Int8, Plain,
    #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    [1 2 3 4 5 6 7 8 : 1],
    [1 2 2, 2 2 2, 3 2 2, 4 2 2, 5 2 2, 6 2 2, 7 1 2, 8 1 2, 9 1 2, 10 1 2, 11 1 2, 12 1 2]);
