//! NEON tiles: 16 lanes are four registers; bf16 is widened in registers.

use std::arch::aarch64::{
    float32x4_t, uint32x4_t, vandq_u32, vdupq_n_f32, vdupq_n_u32, vfmaq_f32, vld1q_f32, vld1q_u32,
    vreinterpretq_f32_u32, vshlq_n_u32, vst1q_f32,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

struct F32;

impl Dot for F32 {
    type Acc = [float32x4_t; 4];
    type A = float32x4_t;
    type B = [float32x4_t; 4];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        // SAFETY: NEON is part of aarch64.
        unsafe { [vdupq_n_f32(0.0); 4] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Acc {
        // SAFETY: the caller's promise.
        unsafe {
            [
                vld1q_f32(from),
                vld1q_f32(from.add(4)),
                vld1q_f32(from.add(8)),
                vld1q_f32(from.add(12)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, acc: Self::Acc) {
        for (i, &part) in acc.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { vst1q_f32(to.add(4 * i), part) };
        }
    }
    #[inline(always)]
    unsafe fn a(from: *const u32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vdupq_n_f32(*from.cast::<f32>()) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe { Self::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(mut acc: Self::Acc, a: float32x4_t, b: Self::B) -> Self::Acc {
        for i in 0..4 {
            // SAFETY: NEON is part of aarch64.
            acc[i] = unsafe { vfmaq_f32(acc[i], a, b[i]) };
        }
        acc
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u32) {}
}

struct Bf16;

#[inline(always)]
unsafe fn low(pairs: uint32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of aarch64.
    unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)) }
}

#[inline(always)]
unsafe fn high(pairs: uint32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of aarch64.
    unsafe { vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000))) }
}

impl Dot for Bf16 {
    type Acc = [float32x4_t; 4];
    type A = uint32x4_t;
    type B = [uint32x4_t; 4];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        // SAFETY: NEON is part of aarch64.
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
    unsafe fn a(from: *const u32) -> uint32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vdupq_n_u32(*from) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe {
            [
                vld1q_u32(from),
                vld1q_u32(from.add(4)),
                vld1q_u32(from.add(8)),
                vld1q_u32(from.add(12)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot(mut acc: Self::Acc, a: uint32x4_t, b: Self::B) -> Self::Acc {
        for i in 0..4 {
            // SAFETY: NEON is part of aarch64.
            acc[i] =
                unsafe { vfmaq_f32(vfmaq_f32(acc[i], low(a), low(b[i])), high(a), high(b[i])) };
        }
        acc
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u32) {}
}

unsafe fn f32_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe { tile::<F32, M, P>(work) }
}

unsafe fn bf16_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P>(work) }
}

pub(crate) static TILES_F32: Tiles = tiles!(f32_tile: [1 2], [2 1]);
pub(crate) static TILES_BF16: Tiles = tiles!(bf16_tile: [1 2], [2 1]);
