//! Operands of AVX-512, with fused multiply-adds and with `vdpbf16ps`.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_blend_epi16, _mm512_or_si512,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_srai_epi32, _mm512_srli_epi32,
};

use super::kernel::{Format, scores, sums};
use super::{BLOCK, Direct, Order, Source};
use crate::attention::transpose::LANES;

/// The upper half of every element.
#[inline(always)]
fn high() -> __m512i {
    // SAFETY: inlined into functions compiled for AVX-512.
    unsafe { _mm512_set1_epi32(0xffff_0000_u32.cast_signed()) }
}

/// bf16 pairs as f32: the earlier values, then the later ones.
#[inline(always)]
fn widen(pairs: __m512i) -> [__m512i; 2] {
    // SAFETY: as above.
    unsafe {
        [
            _mm512_slli_epi32::<16>(pairs),
            _mm512_and_si512(pairs, high()),
        ]
    }
}

/// Pairs of bf16 from f32 values that bf16 holds.
#[inline(always)]
fn pair(low: __m512i, high_half: __m512i) -> __m512i {
    // SAFETY: as above.
    unsafe {
        _mm512_or_si512(
            _mm512_srli_epi32::<16>(low),
            _mm512_and_si512(high_half, high()),
        )
    }
}

/// Whole numbers as f32.
#[inline(always)]
fn float(x: __m512i) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_castps_si512(_mm512_cvtepi32_ps(x)) }
}

/// Words of four codes as f32.
#[inline(always)]
fn floats(codes: __m512i) -> [__m512i; 4] {
    // SAFETY: as above.
    unsafe {
        [
            _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(codes)),
            _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(codes)),
            _mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(codes)),
            _mm512_srai_epi32::<24>(codes),
        ]
        .map(float)
    }
}

/// 16 codes as f32.
#[inline(always)]
unsafe fn load_codes(from: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    float(unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) })
}

#[inline(always)]
unsafe fn multiply_add(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_fmadd_ps(
            _mm512_set1_ps(*input.cast()),
            _mm512_castsi512_ps(part),
            acc,
        )
    }
}

#[inline(always)]
unsafe fn dot_pairs(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
    // SAFETY: the caller's promise; both types are 64 bytes of plain data.
    unsafe {
        let pairs = |bits: __m512i| std::mem::transmute::<__m512i, __m512bh>(bits);
        let input = _mm512_set1_epi32(*input.cast());
        _mm512_dpbf16_ps(acc, pairs(input), pairs(part))
    }
}

struct F32;
struct Bf16;
struct Int8;
struct Bf16Pairs;
struct Int8Pairs;

impl Format for F32 {
    const KEY_PARTS: usize = 1;
    const POSITIONS: usize = 1;

    #[inline(always)]
    unsafe fn key_parts(words: __m512i) -> [__m512i; 4] {
        [words; 4]
    }
    #[inline(always)]
    unsafe fn value_parts(row: *const u8, _: *const u8, column: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        [0, LANES].map(|at| unsafe { _mm512_loadu_si512(row.add(4 * (column + at)).cast()) })
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { multiply_add(acc, input, part) }
    }
}

impl Format for Bf16 {
    const KEY_PARTS: usize = 2;
    const POSITIONS: usize = 1;

    #[inline(always)]
    unsafe fn key_parts(words: __m512i) -> [__m512i; 4] {
        let [even, odd] = widen(words);
        [even, odd, even, odd]
    }
    #[inline(always)]
    unsafe fn value_parts(row: *const u8, _: *const u8, column: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        widen(unsafe { _mm512_loadu_si512(row.add(2 * column).cast()) })
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { multiply_add(acc, input, part) }
    }
}

impl Format for Int8 {
    const KEY_PARTS: usize = 4;
    const POSITIONS: usize = 1;

    #[inline(always)]
    unsafe fn key_parts(words: __m512i) -> [__m512i; 4] {
        floats(words)
    }
    #[inline(always)]
    unsafe fn value_parts(row: *const u8, _: *const u8, column: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        [0, LANES].map(|at| unsafe { load_codes(row.add(column + at)) })
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { multiply_add(acc, input, part) }
    }
}

impl Format for Bf16Pairs {
    const KEY_PARTS: usize = 1;
    const POSITIONS: usize = 2;

    #[inline(always)]
    unsafe fn key_parts(words: __m512i) -> [__m512i; 4] {
        [words; 4]
    }
    #[inline(always)]
    unsafe fn value_parts(row: *const u8, next: *const u8, column: usize) -> [__m512i; 2] {
        const ODD: u32 = 0xaaaa_aaaa;
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm512_loadu_si512(row.add(2 * column).cast());
            let high = _mm512_loadu_si512(next.add(2 * column).cast());
            [
                _mm512_mask_blend_epi16(ODD, low, _mm512_slli_epi32::<16>(high)),
                _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(low), high),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { dot_pairs(acc, input, part) }
    }
}

impl Format for Int8Pairs {
    const KEY_PARTS: usize = 2;
    const POSITIONS: usize = 2;

    #[inline(always)]
    unsafe fn key_parts(words: __m512i) -> [__m512i; 4] {
        let [a, b, c, d] = floats(words);
        let (first, second) = (pair(a, b), pair(c, d));
        [first, second, first, second]
    }
    #[inline(always)]
    unsafe fn value_parts(row: *const u8, next: *const u8, column: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        [0, LANES].map(|at| unsafe {
            pair(
                load_codes(row.add(column + at)),
                load_codes(next.add(column + at)),
            )
        })
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512, input: *const u32, part: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { dot_pairs(acc, input, part) }
    }
}

/// The kernels of one format, compiled for the instructions it needs.
macro_rules! direct {
    ($name:ident, $format:ident, $order:ident, $module:ident, $features:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub(super) unsafe fn keys<const M: usize>(
                source: &Source<'_>,
                queries: *const u32,
                to: *mut [f32; BLOCK],
            ) {
                // SAFETY: the caller's promise; compiled for the format.
                unsafe { scores::<$format, M>(source, queries, to) }
            }

            #[target_feature(enable = $features)]
            pub(super) unsafe fn values<const M: usize, const P: usize>(
                source: &Source<'_>,
                weights: *const [u32; BLOCK],
                acc: *mut f32,
                width: usize,
            ) {
                // SAFETY: as above.
                unsafe { sums::<$format, M, P>(source, weights, acc, width) }
            }
        }

        pub(super) static $name: Direct = Direct {
            scores: [
                $module::keys::<1>,
                $module::keys::<2>,
                $module::keys::<3>,
                $module::keys::<4>,
                $module::keys::<5>,
                $module::keys::<6>,
                $module::keys::<7>,
                $module::keys::<8>,
            ],
            // As many sums as registers hold beside the operands.
            sums: [
                $module::values::<1, 2>,
                $module::values::<2, 2>,
                $module::values::<3, 2>,
                $module::values::<4, 2>,
                $module::values::<5, 2>,
                $module::values::<6, 2>,
                $module::values::<7, 1>,
                $module::values::<8, 1>,
                $module::values::<9, 1>,
                $module::values::<10, 1>,
                $module::values::<11, 1>,
                $module::values::<12, 1>,
            ],
            order: Order::$order,
        };
    };
}

direct!(
    F32_ROWS,
    F32,
    Plain,
    f32_rows,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
direct!(
    BF16_ROWS,
    Bf16,
    EvenOdd,
    bf16_rows,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
direct!(
    INT8_ROWS,
    Int8,
    Plain,
    int8_rows,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
direct!(
    BF16_PAIRS,
    Bf16Pairs,
    EvenOdd,
    bf16_pairs,
    "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
direct!(
    INT8_PAIRS,
    Int8Pairs,
    Plain,
    int8_pairs,
    "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
