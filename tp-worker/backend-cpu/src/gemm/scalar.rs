//! Plain Rust tiles.

use super::tile::{Dot, LANES, Tile, tile};
use super::tiles::{Tiles, tiles};

struct F32;

impl Dot for F32 {
    type Acc = [f32; LANES];
    type A = f32;
    type B = [f32; LANES];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        [0.0; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Acc {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self::Acc>().read() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, acc: Self::Acc) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self::Acc>().write(acc) }
    }
    #[inline(always)]
    unsafe fn a(from: *const u32) -> f32 {
        // SAFETY: the caller's promise.
        f32::from_bits(unsafe { *from })
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self::B>().read() }
    }
    #[inline(always)]
    unsafe fn dot(mut acc: Self::Acc, a: f32, b: Self::B) -> Self::Acc {
        for lane in 0..LANES {
            acc[lane] += a * b[lane];
        }
        acc
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u32) {}
}

/// Products of two bf16 values are exact in f32, so adding them separately
/// gives the bits of a fused multiply-add.
struct Bf16;

#[inline(always)]
fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

#[inline(always)]
fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

impl Dot for Bf16 {
    type Acc = [f32; LANES];
    type A = u32;
    type B = [u32; LANES];

    #[inline(always)]
    unsafe fn zero() -> Self::Acc {
        [0.0; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Acc {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self::Acc>().read() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, acc: Self::Acc) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self::Acc>().write(acc) }
    }
    #[inline(always)]
    unsafe fn a(from: *const u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { *from }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32) -> Self::B {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self::B>().read() }
    }
    #[inline(always)]
    unsafe fn dot(mut acc: Self::Acc, a: u32, b: Self::B) -> Self::Acc {
        for lane in 0..LANES {
            acc[lane] += low(a) * low(b[lane]);
        }
        for lane in 0..LANES {
            acc[lane] += high(a) * high(b[lane]);
        }
        acc
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u32) {}
}

unsafe fn f32_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: the caller's promise; plain Rust needs no instruction set.
    unsafe { tile::<F32, M, P>(work) }
}

unsafe fn bf16_tile<const M: usize, const P: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Bf16, M, P>(work) }
}

pub(crate) static TILES_F32: Tiles = tiles!(f32_tile: [1 2], [1 1]);
pub(crate) static TILES_BF16: Tiles = tiles!(bf16_tile: [1 2], [1 1]);
