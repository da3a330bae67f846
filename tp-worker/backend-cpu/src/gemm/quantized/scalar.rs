//! Plain Rust.

#[cfg(test)]
use super::blocks::Undo;
use super::int4::Int4;
use super::int8::Int8;
use super::{Lanes, tile};
use crate::gemm::tile::{LANES, Tile};
use crate::gemm::tiles::{Tiles, tiles};

pub(in crate::gemm) struct Scalar;

#[cfg(test)]
impl Undo for Scalar {
    #[inline(always)]
    unsafe fn undo(sums: [u32; LANES], undo: *const u32) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        let undo = unsafe { undo.read() };
        sums.map(|sum| sum.wrapping_add(undo))
    }
}

impl Lanes for Scalar {
    type Words = [u32; LANES];
    type Bytes = [i8; 4];
    type Floats = [f32; LANES];

    #[inline(always)]
    unsafe fn words(from: *const u32) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u32; LANES]>().read() }
    }
    #[inline(always)]
    unsafe fn start(undo: *const u32) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        [unsafe { undo.read() }; LANES]
    }
    #[inline(always)]
    unsafe fn int8(words: Self::Words) -> Self::Words {
        words
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u32) -> [i8; 4] {
        // SAFETY: the caller's promise.
        unsafe { from.read() }.to_le_bytes().map(u8::cast_signed)
    }
    #[inline(always)]
    unsafe fn dot(mut sum: [u32; LANES], weights: [u32; LANES], inputs: [i8; 4]) -> [u32; LANES] {
        for lane in 0..LANES {
            let weights = weights[lane].to_le_bytes();
            for i in 0..4 {
                let product = i32::from(weights[i]) * i32::from(inputs[i]);
                sum[lane] = sum[lane].wrapping_add_signed(product);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn bf16(words: [u32; LANES], half: usize) -> [f32; LANES] {
        words.map(|word| {
            f32::from_bits(if half == 0 {
                word << 16
            } else {
                word & 0xffff_0000
            })
        })
    }
    #[inline(always)]
    unsafe fn int4(words: Self::Words) -> [Self::Words; 2] {
        [0, 4].map(|shift| words.map(|word| (word >> shift) & 0x0f0f_0f0f))
    }
    #[inline(always)]
    unsafe fn multipliers(words: Self::Words, part: usize) -> Self::Words {
        words.map(|word| ((word << (27 - 5 * part)).cast_signed() >> 27).cast_unsigned())
    }
    #[inline(always)]
    unsafe fn add_multiple(
        mut sum: Self::Words,
        product: Self::Words,
        multiplier: Self::Words,
    ) -> Self::Words {
        for lane in 0..LANES {
            sum[lane] = sum[lane].wrapping_add(product[lane].wrapping_mul(multiplier[lane]));
        }
        sum
    }
    #[inline(always)]
    unsafe fn float12(words: Self::Words) -> Self::Floats {
        words.map(|word| f32::from_bits((word >> 1) & 0x7ff8_0000))
    }
    #[inline(always)]
    unsafe fn no_words() -> Self::Words {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn zero() -> [f32; LANES] {
        [0.0; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f32; LANES]>().read() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, floats: [f32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write(floats) }
    }
    #[inline(always)]
    unsafe fn add_scaled(
        mut acc: [f32; LANES],
        sum: [u32; LANES],
        scale: [f32; LANES],
        factor: *const f32,
    ) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let factor = unsafe { factor.read() };
        for lane in 0..LANES {
            let sum = sum[lane].cast_signed() as f32;
            acc[lane] = sum.mul_add(scale[lane] * factor, acc[lane]);
        }
        acc
    }
}

unsafe fn int8<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; plain Rust needs no instruction set.
    unsafe { tile::<Int8, Scalar, M, P, H>(work) }
}

unsafe fn int4<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; plain Rust needs no instruction set.
    unsafe { tile::<Int4, Scalar, M, P, H>(work) }
}

pub(super) static INT8: Tiles = tiles!(Integers, int8: [1 2], [ : ], [2 1]);
pub(super) static INT4: Tiles = tiles!(Integers, int4: [1 2], [ : ], [2 1], INT8);
