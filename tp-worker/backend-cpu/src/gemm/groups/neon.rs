//! NEON: 16 lanes are four registers. Inputs meet signed bytes, to which codes of 4 bits belong as
//! they are.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint32x4_t, vaddq_u32, vandq_u32, vcvtq_f32_s32, vdupq_n_f32,
    vdupq_n_u32, vfmaq_f32, vget_high_s8, vget_high_s16, vget_low_s8, vget_low_s16, vld1q_s8,
    vld1q_u8, vmovl_s8, vmovl_s16, vmulq_f32, vqtbl1q_u8, vreinterpretq_s32_u32,
    vreinterpretq_u8_u32, vreinterpretq_u32_u8, vshlq_n_u32, vshrq_n_u32,
};

use super::expand::{Scales, expand};
use super::kernels::kernels;
use super::{GroupLanes, Layout};
use crate::gemm::quantized::neon::Neon;
use crate::number::bf16_value;

const PARTS: [usize; 4] = [0, 1, 2, 3];

/// The values of four IEEE halves. The conversion is a part of aarch64, of which Rust has no
/// function yet.
#[inline(always)]
unsafe fn f16_values(from: *const u8) -> float32x4_t {
    let values: float32x4_t;
    // SAFETY: the caller's promise: four halves are readable.
    unsafe {
        std::arch::asm!(
            "ldr {values:d}, [{from}]",
            "fcvtl {values:v}.4s, {values:v}.4h",
            values = out(vreg) values,
            from = in(reg) from,
            options(nostack, readonly, preserves_flags),
        );
    }
    values
}

impl GroupLanes for Neon {
    #[inline(always)]
    unsafe fn word(from: *const u32) -> [uint32x4_t; 4] {
        // SAFETY: the caller's promise.
        [unsafe { vdupq_n_u32(from.read()) }; 4]
    }
    #[inline(always)]
    unsafe fn halves(words: [uint32x4_t; 4]) -> [[uint32x4_t; 4]; 2] {
        // SAFETY: NEON is part of aarch64.
        unsafe {
            let low = vdupq_n_u32(0x0f0f_0f0f);
            let high = words.map(|words| vshrq_n_u32::<4>(words));
            [words, high].map(|words| words.map(|words| vandq_u32(words, low)))
        }
    }
    #[inline(always)]
    unsafe fn entries(codes: [uint32x4_t; 4], table: *const u8) -> [uint32x4_t; 4] {
        // SAFETY: the caller's promise.
        codes.map(|codes| unsafe {
            let entries = vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(codes));
            vreinterpretq_u32_u8(entries)
        })
    }
    #[inline(always)]
    unsafe fn join(high: [uint32x4_t; 4], low: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        PARTS.map(|i| unsafe { vaddq_u32(vshlq_n_u32::<8>(high[i]), low[i]) })
    }
    #[inline(always)]
    unsafe fn floats(words: [uint32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe { vcvtq_f32_s32(vreinterpretq_s32_u32(words)) })
    }
    #[inline(always)]
    unsafe fn float(from: *const f32) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        [unsafe { vdupq_n_f32(from.read()) }; 4]
    }
    #[inline(always)]
    unsafe fn f16(from: *const u8) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        PARTS.map(|i| unsafe { f16_values(from.add(8 * i)) })
    }
    #[inline(always)]
    unsafe fn bfloat16(from: *const u8) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        let pairs = unsafe { from.cast::<[[u16; 4]; 4]>().read_unaligned() };
        pairs.map(|pairs| {
            let values = pairs.map(bf16_value);
            // SAFETY: four values are readable.
            unsafe { std::arch::aarch64::vld1q_f32(values.as_ptr()) }
        })
    }
    #[inline(always)]
    unsafe fn small(from: *const u8) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes: int8x16_t = vld1q_s8(from.cast());
            let [low, high] = [vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))];
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn product(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        PARTS.map(|i| unsafe { vmulq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    unsafe fn add_product(
        acc: [float32x4_t; 4],
        a: [float32x4_t; 4],
        b: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        // SAFETY: NEON is part of aarch64.
        PARTS.map(|i| unsafe { vfmaq_f32(acc[i], a[i], b[i]) })
    }
    /// One body for all tiles, which it would make twice as long.
    #[inline(never)]
    unsafe fn expand(layout: &Layout, numbers: *const u8, halves: [usize; 2], room: *mut Scales) {
        // SAFETY: the caller's promise; NEON is part of aarch64.
        unsafe { expand::<Self>(layout, numbers, halves, room) }
    }
}

kernels!(
    plain,
    #[target_feature(enable = "neon")]
    Neon,
    TABLES:
        [1 2 3 4] [ : ] [2 1 1 1],
        [1 2 3] [ : ] [1 1 1]
);
