//! Plain Rust tiles.

use super::tile::{Dot, LANES, Tile, tile};
use super::tiles::{Tiles, tiles};

type Lanes = [f32; LANES];

/// Operations that both element types share.
macro_rules! common {
    () => {
        type Acc = Lanes;
        type A = f32;
        type B = Lanes;

        #[inline(always)]
        unsafe fn zero() -> Lanes {
            [0.0; LANES]
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Lanes {
            // SAFETY: the caller's promise.
            unsafe { from.cast::<Lanes>().read() }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, acc: Lanes) {
            // SAFETY: the caller's promise.
            unsafe { to.cast::<Lanes>().write(acc) }
        }
        #[inline(always)]
        unsafe fn a(from: *const u32) -> f32 {
            // SAFETY: the caller's promise.
            f32::from_bits(unsafe { *from })
        }
        #[inline(always)]
        unsafe fn dot(mut acc: Lanes, a: f32, b: Lanes) -> Lanes {
            for lane in 0..LANES {
                acc[lane] += a * b[lane];
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
        unsafe { from.cast::<Lanes>().read() }
    }
}

/// Products of two bf16 values are exact in f32, so adding them separately
/// gives the bits of a fused multiply-add.
struct Bf16;

impl Dot for Bf16 {
    const INPUTS: usize = 2;
    common!();

    #[inline(always)]
    unsafe fn b(from: *const u32, part: usize) -> Lanes {
        // SAFETY: the caller's promise.
        let pairs = unsafe { from.cast::<[u32; LANES]>().read() };
        pairs.map(|pair| {
            f32::from_bits(if part == 0 {
                pair << 16
            } else {
                pair & 0xffff_0000
            })
        })
    }
}

unsafe fn f32_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; plain Rust needs no instruction set.
    unsafe { tile::<F32, M, P, H>(work) }
}

unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P, H>(work) }
}

pub(crate) static TILES_F32: Tiles = tiles!(F32, f32_tile: [1 2], [:], [2 1]);
pub(crate) static TILES_BF16: Tiles = tiles!(Rounded, bf16_tile: [1 2], [:], [2 1]);
