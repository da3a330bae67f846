//! Plain Rust tiles of 8-bit floats.

use lockstep_backend::E4m3;

use super::{CODE_SCALE, Kernels, Widen, tile, widen_steps};
use crate::gemm::scalar::F32;
use crate::gemm::tile::{Dot, LANES, Tile};
use crate::gemm::tiles::{Tiles, tiles};

type Lanes = [f32; LANES];

/// Sums like those of all other instruction sets: products of widened weights are not exact in
/// f32, so they are not rounded before they are added.
pub(in crate::gemm) struct Fused;

impl Dot for Fused {
    const INPUTS: usize = 1;
    type Acc = Lanes;
    type A = f32;
    type B = Lanes;

    #[inline(always)]
    unsafe fn zero() -> Lanes {
        // SAFETY: plain Rust.
        unsafe { F32::zero() }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { F32::load(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, acc: Lanes) {
        // SAFETY: the caller's promise.
        unsafe { F32::store(to, acc) }
    }
    #[inline(always)]
    unsafe fn a(from: *const u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { F32::a(from) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32, part: usize) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { F32::b(from, part) }
    }
    #[inline(always)]
    unsafe fn dot(mut acc: Lanes, a: f32, b: Lanes) -> Lanes {
        for lane in 0..LANES {
            acc[lane] = a.mul_add(b[lane], acc[lane]);
        }
        acc
    }
}

impl Widen for Fused {
    #[inline(always)]
    unsafe fn widen(codes: *const u8, factors: Lanes) -> Lanes {
        // SAFETY: the caller's promise.
        let codes = unsafe { codes.cast::<[u8; LANES]>().read() };
        std::array::from_fn(|lane| {
            // Codes that are no numbers have a factor that is none, either.
            let value = E4m3(codes[lane]).value() / CODE_SCALE;
            value * factors[lane]
        })
    }
}

unsafe fn fp8_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; plain Rust needs no instruction set.
    unsafe { tile::<Fused, M, P, H>(work) }
}

unsafe fn widen(scales: usize, narrow: &[u32], wide: &mut [u32]) {
    // SAFETY: as above.
    unsafe { widen_steps::<Fused>(scales, narrow, wide) }
}

static EXACT: Tiles = tiles!(Groups, fp8_tile: [1 2], [:], [2 1]);
static ROUNDED: Tiles = tiles!(RoundedGroups, fp8_tile: [1 2], [:], [2 1]);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT, &ROUNDED],
    widen,
    pairs: None,
};
