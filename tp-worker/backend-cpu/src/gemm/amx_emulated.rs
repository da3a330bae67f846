//! What AMX tiles compute, in plain Rust: the same bits on every machine.
//!
//! `tdpbf16ps` sums a block of 32 inputs in two chains of fused multiply-adds,
//! one over the even and one over the odd inputs, each from zero; then it adds
//! both to each other and to the sum so far. Every operation rounds to nearest
//! even and takes subnormal numbers for zeros, before and after.

use super::tile::{LANES, PANEL, Tile};
use super::tiles::{BLOCK_STEPS, Tiles, tiles};
use crate::isa::Isa;
use crate::multiversion::multiversion;

type Lanes = [f32; LANES];

/// Zero for a subnormal number, of its sign.
#[inline(always)]
fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    let normal = bits & 0x7f80_0000 != 0;
    f32::from_bits(if normal { bits } else { bits & 0x8000_0000 })
}

multiversion! {
    /// Adds a block of `steps` pairs of inputs, the rest of it zeros, to the sums
    /// of 16 columns, whose weights lie `PANEL` words from step to step.
    pub(super) fn add_block(sums: &mut Lanes, inputs: &[u32], weights: &[u32]) {
        let (mut even, mut odd) = ([0.0f32; LANES], [0.0f32; LANES]);
        for (input, weights) in inputs.iter().zip(weights.chunks(PANEL)) {
            let low = flush(f32::from_bits(input << 16));
            let high = flush(f32::from_bits(input & 0xffff_0000));
            for lane in 0..LANES {
                let (first, second) = (weights[lane] << 16, weights[lane] & 0xffff_0000);
                even[lane] = flush(low.mul_add(flush(f32::from_bits(first)), even[lane]));
                odd[lane] = flush(high.mul_add(flush(f32::from_bits(second)), odd[lane]));
            }
        }
        if inputs.len() < BLOCK_STEPS {
            // Zeros times zeros leave a chain as it is, but for a negative zero.
            for lane in 0..LANES {
                (even[lane], odd[lane]) = (even[lane] + 0.0, odd[lane] + 0.0);
            }
        }
        for lane in 0..LANES {
            sums[lane] = flush(flush(sums[lane]) + flush(even[lane] + odd[lane]));
        }
    }
}

/// `M` rows times one panel; `P` and `H` are those of other tiles' tables.
unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    for row in 0..M {
        for half in 0..PANEL / LANES {
            // SAFETY: the caller's promise: the pointers are valid for `M` rows
            // and the steps of a panel.
            unsafe { columns(work, M, row, half * LANES) };
        }
    }
}

/// 16 columns of a row.
unsafe fn columns(work: &Tile, rows: usize, row: usize, column: usize) {
    let isa = Isa::AmxEmulated;
    // SAFETY: forwarded to the caller.
    unsafe {
        let out = work.c.add(row * work.ldc + column).cast::<Lanes>();
        let mut sums = if work.resume {
            out.read()
        } else {
            [0.0; LANES]
        };
        for (block, from) in (0..work.steps).step_by(BLOCK_STEPS).enumerate() {
            let steps = BLOCK_STEPS.min(work.steps - from);
            let inputs = work.a.add((block * rows + row) * BLOCK_STEPS);
            let weights = work.b.add(from * PANEL + column);
            let inputs = std::slice::from_raw_parts(inputs, steps);
            let words = (steps - 1) * PANEL + LANES;
            add_block(
                isa,
                &mut sums,
                inputs,
                std::slice::from_raw_parts(weights, words),
            );
        }
        out.write(sums);
    }
}

pub(crate) static TILES_BF16: Tiles = tiles!(
    Blocks, bf16_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32],
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 : 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1],
    [1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1]
);
