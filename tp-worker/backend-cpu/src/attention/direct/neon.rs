//! NEON: 16 lanes are four registers.

use std::arch::aarch64::{
    float32x4_t, uint32x4_t, vandq_u32, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_u32, vfmaq_f32,
    vget_high_s16, vget_low_s16, vld1_s8, vld1q_f32, vld1q_u8, vmovl_s8, vmovl_s16,
    vreinterpretq_f32_u32, vreinterpretq_s32_u32, vreinterpretq_u32_f32, vreinterpretq_u32_u8,
    vshlq_n_u32, vshrq_n_s32, vst1q_f32,
};

use super::format::{Bf16, F32, Int8, Simd};
use super::kernel::direct;
use crate::attention::transpose::{LANES, neon};

pub(super) struct Neon;

impl Simd for Neon {
    type Sum = [float32x4_t; 4];
    type Words = [uint32x4_t; 4];

    #[inline(always)]
    unsafe fn zero() -> [float32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        unsafe { [vdupq_n_f32(0.0); 4] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        [0, 4, 8, 12].map(|at| unsafe { vld1q_f32(from.add(at)) })
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, sum: [float32x4_t; 4]) {
        for (i, &part) in sum.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { vst1q_f32(to.add(4 * i), part) };
        }
    }
    #[inline(always)]
    unsafe fn quarter(rows: &[*const u32; LANES], word: usize) -> [[uint32x4_t; 4]; 4] {
        // SAFETY: the caller's promise.
        let parts = [0, 4, 8, 12].map(|first| unsafe { neon::quarter(&rows[first..], word) });
        std::array::from_fn(|i| parts.map(|part| part[i]))
    }
    #[inline(always)]
    unsafe fn words(from: *const u8) -> [uint32x4_t; 4] {
        // SAFETY: the caller's promise.
        [0, 16, 32, 48].map(|at| unsafe { vreinterpretq_u32_u8(vld1q_u8(from.add(at))) })
    }
    #[inline(always)]
    unsafe fn codes(from: *const u8) -> [uint32x4_t; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = [0, 8].map(|at| vmovl_s8(vld1_s8(from.add(at).cast())));
            [
                vget_low_s16(low),
                vget_high_s16(low),
                vget_low_s16(high),
                vget_high_s16(high),
            ]
            .map(|codes| vreinterpretq_u32_f32(vcvtq_f32_s32(vmovl_s16(codes))))
        }
    }
    #[inline(always)]
    unsafe fn low(words: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe { vshlq_n_u32::<16>(words) })
    }
    #[inline(always)]
    unsafe fn high(words: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe { vandq_u32(words, vdupq_n_u32(0xffff_0000)) })
    }
    #[inline(always)]
    unsafe fn code(words: [uint32x4_t; 4], index: usize) -> [uint32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe {
            let shifted = match index {
                0 => vshlq_n_u32::<24>(words),
                1 => vshlq_n_u32::<16>(words),
                2 => vshlq_n_u32::<8>(words),
                _ => words,
            };
            let code = vshrq_n_s32::<24>(vreinterpretq_s32_u32(shifted));
            vreinterpretq_u32_f32(vcvtq_f32_s32(code))
        })
    }
    #[inline(always)]
    unsafe fn fma<const ROWS: usize>(
        mut sum: [float32x4_t; 4],
        input: *const u32,
        words: [uint32x4_t; 4],
    ) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let input = vdupq_n_f32(*input.cast());
            for i in 0..4 {
                sum[i] = vfmaq_f32(sum[i], input, vreinterpretq_f32_u32(words[i]));
            }
        }
        sum
    }
}

// As many sums as registers hold beside the operands.
direct!(F32_ROWS in f32_rows: F32<Neon>, Plain,
    [1 2 3 4 5 : 1], [1 2 2, 2 1 2, 3 1 2, 4 1 1, 5 1 1]);
direct!(BF16_ROWS in bf16_rows: Bf16<Neon>, EvenOdd,
    [1 2 3 4 5 : 1], [1 2 2, 2 1 2, 3 1 2, 4 1 1, 5 1 1]);
direct!(INT8_ROWS in int8_rows: Int8<Neon>, Plain,
    [1 2 3 4 5 : 1], [1 2 2, 2 1 2, 3 1 2, 4 1 1, 5 1 1]);
