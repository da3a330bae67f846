//! Plain Rust.

use half::f16;

use super::expand::{Scales, expand};
use super::kernels::kernels;
use super::{GroupLanes, Layout};
use crate::gemm::quantized::scalar::Scalar;
use crate::gemm::tile::LANES;
use crate::number::bf16_value;

/// Two bytes of each of 16 columns.
unsafe fn pairs(from: *const u8) -> [u16; LANES] {
    // SAFETY: the caller's promise.
    let pairs = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
    pairs.map(u16::from_le_bytes)
}

impl GroupLanes for Scalar {
    #[inline(always)]
    unsafe fn word(from: *const u32) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        [unsafe { from.read() }; LANES]
    }
    #[inline(always)]
    unsafe fn halves(words: [u32; LANES]) -> [[u32; LANES]; 2] {
        [0, 4].map(|shift| words.map(|word| (word >> shift) & 0x0f0f_0f0f))
    }
    #[inline(always)]
    unsafe fn entries(codes: [u32; LANES], table: *const u8) -> [u32; LANES] {
        // SAFETY: the caller's promise: a table of 16 entries.
        let table = unsafe { table.cast::<[u8; 16]>().read() };
        codes.map(|word| {
            let codes = word.to_le_bytes();
            u32::from_le_bytes(codes.map(|code| table[code as usize % 16]))
        })
    }
    #[inline(always)]
    unsafe fn join(high: [u32; LANES], low: [u32; LANES]) -> [u32; LANES] {
        std::array::from_fn(|lane| (high[lane] << 8).wrapping_add(low[lane]))
    }
    #[inline(always)]
    unsafe fn floats(words: [u32; LANES]) -> [f32; LANES] {
        words.map(|word| word.cast_signed() as f32)
    }
    #[inline(always)]
    unsafe fn float(from: *const f32) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        [unsafe { from.read() }; LANES]
    }
    #[inline(always)]
    unsafe fn f16(from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { pairs(from) }.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn bfloat16(from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { pairs(from) }.map(bf16_value)
    }
    #[inline(always)]
    unsafe fn small(from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { from.cast::<[i8; LANES]>().read() };
        bytes.map(f32::from)
    }
    #[inline(always)]
    unsafe fn product(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    unsafe fn add_product(acc: [f32; LANES], a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], acc[lane]))
    }
    unsafe fn expand(layout: &Layout, numbers: *const u8, halves: [usize; 2], room: *mut Scales) {
        // SAFETY: the caller's promise; plain Rust needs no instruction set.
        unsafe { expand::<Self>(layout, numbers, halves, room) }
    }
}

kernels!(plain, Scalar, TABLES: [1 2] [ : ] [2 1], [1 2] [ : ] [2 1]);
