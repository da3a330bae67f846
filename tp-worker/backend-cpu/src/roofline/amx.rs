//! AMX tiles: four sums of 16 × 16, a product every 16 cycles.
//!
//! Operands are of random bits: with zeros the processor draws less power and
//! is a quarter faster than it is with weights.

use std::arch::asm;

use super::peak::Chains;
use crate::amx::{release, shape};

const SUMS: usize = 4;

pub(super) const BF16: Chains = Chains {
    run: bf16,
    operations: SUMS * 16 * 16 * 32 * 2,
    instruction: "tdpbf16ps",
};

pub(super) const INT8: Chains = Chains {
    run: int8,
    operations: SUMS * 16 * 16 * 64 * 2,
    instruction: "tdpbssd",
};

/// A tile's bytes.
#[repr(align(64))]
struct Bits([u32; 256]);

/// Pairs of bf16 in ±2, or bytes, with random bits otherwise.
static OPERANDS: [Bits; 4] = {
    let mut operands = [const { Bits([0; 256]) }; 4];
    let mut state = 0x9e37_79b9_u32;
    let mut i = 0;
    while i < 1_024 {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        operands[i / 256].0[i % 256] = (state & 0xbfff_bfff) | 0x3c00_3c00;
        i += 1;
    }
    operands
};

macro_rules! chains {
    ($name:ident, $product:literal) => {
        unsafe fn $name(turns: u64) -> f32 {
            let mut sums = Bits([0; 256]);
            // SAFETY: the caller's promise: the process may use tiles. What is
            // loaded and stored are tiles of 1 KiB.
            unsafe {
                shape(32);
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{from} + {row}]",
                    "tileloadd tmm5, [{from} + {row} + 1024]",
                    "tileloadd tmm6, [{from} + {row} + 2048]",
                    "tileloadd tmm7, [{from} + {row} + 3072]",
                    "2:",
                    concat!($product, " tmm0, tmm4, tmm6"),
                    concat!($product, " tmm1, tmm4, tmm7"),
                    concat!($product, " tmm2, tmm5, tmm6"),
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "dec {turns}",
                    "jnz 2b",
                    "tilestored [{to} + {row}], tmm0",
                    from = in(reg) OPERANDS.as_ptr(),
                    to = in(reg) sums.0.as_mut_ptr(),
                    row = in(reg) 64usize,
                    turns = inout(reg) turns.max(1) => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
            release();
            f32::from_bits(sums.0[0])
        }
    };
}

chains!(bf16, "tdpbf16ps");
chains!(int8, "tdpbssd");
