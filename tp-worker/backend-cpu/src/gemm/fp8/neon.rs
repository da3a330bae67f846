//! NEON tiles of 8-bit floats.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vandq_s32, vdupq_n_s32, vget_high_s8, vget_high_s16, vget_low_s8,
    vget_low_s16, vld1q_s8, vmovl_s8, vmovl_s16, vmulq_f32, vmulq_n_f32, vreinterpretq_f32_s32,
    vshlq_n_s32,
};

use super::{Kernels, Widen, tile, widen_steps};
use crate::gemm::neon::{F32, TILES_F32};
use crate::gemm::tile::Tile;
use crate::gemm::tiles::{Tiles, tiles};

/// A code at the place of an f32's exponent and mantissa is its value times this power of two
/// too small: 2⁻¹²⁰, of which factors undo 2⁻⁸.
const EXPONENT: f32 = f32::from_bits((127 + 112) << 23);

/// The f32 of four codes.
#[inline(always)]
unsafe fn widen_four(codes: int32x4_t, factors: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of aarch64.
    unsafe {
        // The sign is in all upper bits; the highest stays.
        let mask = vdupq_n_s32(0x87f0_0000_u32.cast_signed());
        let bits = vandq_s32(vshlq_n_s32::<20>(codes), mask);
        let values = vmulq_n_f32(vreinterpretq_f32_s32(bits), EXPONENT);
        vmulq_f32(values, factors)
    }
}

impl Widen for F32 {
    #[inline(always)]
    unsafe fn widen(codes: *const u8, factors: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = vld1q_s8(codes.cast());
            let [low, high] = [vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes))];
            [
                widen_four(vmovl_s16(vget_low_s16(low)), factors[0]),
                widen_four(vmovl_s16(vget_high_s16(low)), factors[1]),
                widen_four(vmovl_s16(vget_low_s16(high)), factors[2]),
                widen_four(vmovl_s16(vget_high_s16(high)), factors[3]),
            ]
        }
    }
}

unsafe fn fp8_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe { tile::<F32, M, P, H>(work) }
}

unsafe fn widen(scales: usize, narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<F32>(scales, narrow, wide) }
}

static EXACT: Tiles = tiles!(Groups, fp8_tile: [1 2 3 4 5], [1 : 2], [2 2 1 1 1], TILES_F32);
static ROUNDED: Tiles =
    tiles!(RoundedGroups, fp8_tile: [1 2 3 4 5], [1 : 2], [2 2 1 1 1], TILES_F32);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    pairs: None,
};
