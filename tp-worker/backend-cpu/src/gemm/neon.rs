//! NEON tiles: 16 lanes are four registers; bf16 is widened in registers.

use std::arch::aarch64::{
    float32x4_t, vandq_u32, vdupq_n_f32, vdupq_n_u32, vfmaq_f32, vld1q_f32, vld1q_u32,
    vreinterpretq_f32_u32, vshlq_n_u32, vst1q_f32,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

type Lanes = [float32x4_t; 4];

/// Operations that both element types share.
macro_rules! common {
    () => {
        type Acc = Lanes;
        type A = float32x4_t;
        type B = Lanes;

        #[inline(always)]
        unsafe fn zero() -> Lanes {
            // SAFETY: NEON is part of aarch64.
            unsafe { [vdupq_n_f32(0.0); 4] }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Lanes {
            // SAFETY: the caller's promise.
            [0, 4, 8, 12].map(|at| unsafe { vld1q_f32(from.add(at)) })
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, acc: Lanes) {
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
        unsafe fn dot(mut acc: Lanes, a: float32x4_t, b: Lanes) -> Lanes {
            for i in 0..4 {
                // SAFETY: NEON is part of aarch64.
                acc[i] = unsafe { vfmaq_f32(acc[i], a, b[i]) };
            }
            acc
        }
    };
}

pub(super) struct F32;

impl Dot for F32 {
    const INPUTS: usize = 1;
    common!();

    #[inline(always)]
    unsafe fn b(from: *const u32, _: usize) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { Self::load(from.cast()) }
    }
}

struct Bf16;

/// The earlier (part 0) or later values of 4 pairs.
#[inline(always)]
unsafe fn widen(from: *const u32, part: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = vld1q_u32(from);
        vreinterpretq_f32_u32(if part == 0 {
            vshlq_n_u32::<16>(pairs)
        } else {
            vandq_u32(pairs, vdupq_n_u32(0xffff_0000))
        })
    }
}

impl Dot for Bf16 {
    const INPUTS: usize = 2;
    common!();

    #[inline(always)]
    unsafe fn b(from: *const u32, part: usize) -> Lanes {
        // SAFETY: the caller's promise.
        [0, 4, 8, 12].map(|at| unsafe { widen(from.add(at), part) })
    }
}

unsafe fn f32_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe { tile::<F32, M, P, H>(work) }
}

unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P, H>(work) }
}

pub(crate) static TILES_F32: Tiles = tiles!(F32, f32_tile: [1 2 3 4 5], [1 : 2], [2 2 1 1 1]);
pub(crate) static TILES_BF16: Tiles = tiles!(Rounded, bf16_tile: [1 2 3 4 5], [1 : 2], [2 2 1 1 1]);
