//! NEON: 16 lanes are four registers. Weights are made signed, so products of bytes fit in
//! 16 bits and no offset has to be undone.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint32x4_t, vaddq_s32, vandq_u32, vcvtq_f32_s32, vdupq_n_f32,
    vdupq_n_s8, vdupq_n_s32, vdupq_n_u32, veorq_u32, vfmaq_f32, vget_low_s8, vld1q_f32, vld1q_u32,
    vmlaq_u32, vmull_high_s8, vmull_s8, vmulq_f32, vpaddlq_s16, vpaddq_s32, vreinterpretq_f32_u32,
    vreinterpretq_s8_u32, vreinterpretq_s32_u32, vreinterpretq_u32_s8, vreinterpretq_u32_s32,
    vshlq_n_u32, vshlq_u32, vshrq_n_s32, vshrq_n_u32, vst1q_f32, vsubq_s8,
};

use super::int4::Int4;
use super::int8::Int8;
use super::{Lanes, tile};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

const PARTS: [usize; 4] = [0, 1, 2, 3];

pub(in crate::gemm) struct Neon;

impl Lanes for Neon {
    type Words = [uint32x4_t; 4];
    type Bytes = int8x16_t;
    type Floats = [float32x4_t; 4];

    #[inline(always)]
    unsafe fn words(from: *const u32) -> Self::Words {
        // SAFETY: the caller's promise.
        PARTS.map(|i| unsafe { vld1q_u32(from.add(4 * i)) })
    }
    #[inline(always)]
    unsafe fn start(_: *const u32) -> Self::Words {
        // SAFETY: NEON is part of aarch64.
        unsafe { [vdupq_n_u32(0); 4] }
    }
    #[inline(always)]
    unsafe fn int8(words: Self::Words) -> Self::Words {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe { veorq_u32(words, vdupq_n_u32(0x8080_8080)) })
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u32) -> int8x16_t {
        // SAFETY: the caller's promise.
        unsafe { vreinterpretq_s8_u32(vdupq_n_u32(from.read())) }
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::Words, weights: Self::Words, inputs: int8x16_t) -> Self::Words {
        // SAFETY: NEON is part of aarch64.
        PARTS.map(|i| unsafe {
            let weights = vreinterpretq_s8_u32(weights[i]);
            let first = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(inputs)));
            let last = vpaddlq_s16(vmull_high_s8(weights, inputs));
            let sum = vaddq_s32(vreinterpretq_s32_u32(sum[i]), vpaddq_s32(first, last));
            vreinterpretq_u32_s32(sum)
        })
    }
    #[inline(always)]
    unsafe fn bf16(words: Self::Words, half: usize) -> Self::Floats {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe {
            vreinterpretq_f32_u32(if half == 0 {
                vshlq_n_u32::<16>(words)
            } else {
                vandq_u32(words, vdupq_n_u32(0xffff_0000))
            })
        })
    }
    #[inline(always)]
    unsafe fn int4(words: Self::Words) -> [Self::Words; 2] {
        // SAFETY: NEON is part of aarch64.
        unsafe {
            let high = words.map(|words| vshrq_n_u32::<4>(words));
            [words, high].map(|words| {
                words.map(|words| {
                    let low = vandq_u32(words, vdupq_n_u32(0x0f0f_0f0f));
                    let signed = vsubq_s8(vreinterpretq_s8_u32(low), vdupq_n_s8(8));
                    vreinterpretq_u32_s8(signed)
                })
            })
        }
    }
    #[inline(always)]
    unsafe fn multipliers(words: Self::Words, part: usize) -> Self::Words {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe {
            let above = vshlq_u32(words, vdupq_n_s32(27 - 5 * part as i32));
            vreinterpretq_u32_s32(vshrq_n_s32::<27>(vreinterpretq_s32_u32(above)))
        })
    }
    #[inline(always)]
    unsafe fn add_multiple(
        sum: Self::Words,
        product: Self::Words,
        multiplier: Self::Words,
    ) -> Self::Words {
        // SAFETY: NEON is part of aarch64.
        PARTS.map(|i| unsafe { vmlaq_u32(sum[i], product[i], multiplier[i]) })
    }
    #[inline(always)]
    unsafe fn float12(words: Self::Words) -> Self::Floats {
        // SAFETY: NEON is part of aarch64.
        words.map(|words| unsafe {
            let bits = vandq_u32(vshrq_n_u32::<1>(words), vdupq_n_u32(0x7ff8_0000));
            vreinterpretq_f32_u32(bits)
        })
    }
    #[inline(always)]
    unsafe fn no_words() -> Self::Words {
        // SAFETY: NEON is part of aarch64.
        unsafe { [vdupq_n_u32(0); 4] }
    }
    #[inline(always)]
    unsafe fn zero() -> Self::Floats {
        // SAFETY: NEON is part of aarch64.
        unsafe { [vdupq_n_f32(0.0); 4] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Floats {
        // SAFETY: the caller's promise.
        PARTS.map(|i| unsafe { vld1q_f32(from.add(4 * i)) })
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, floats: Self::Floats) {
        for i in PARTS {
            // SAFETY: the caller's promise.
            unsafe { vst1q_f32(to.add(4 * i), floats[i]) };
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
        PARTS.map(|i| unsafe {
            let sum = vcvtq_f32_s32(vreinterpretq_s32_u32(sum[i]));
            vfmaq_f32(acc[i], sum, vmulq_f32(scale[i], vdupq_n_f32(factor.read())))
        })
    }
}

#[target_feature(enable = "neon")]
unsafe fn int8<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe { tile::<Int8, Neon, M, P, H>(work) }
}

#[target_feature(enable = "neon")]
unsafe fn int4<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe { tile::<Int4, Neon, M, P, H>(work) }
}

pub(super) static INT8: Tiles = tiles!(Integers, int8: [1 2 3 4], [ : ], [2 1 1 1]);
pub(super) static INT4: Tiles = tiles!(Integers, int4: [1 2 3 4], [ : ], [2 1 1 1], INT8);
