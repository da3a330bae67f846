//! The products of AMX tiles in plain Rust, with the same bits on every machine.
//!
//! `tdpbf16ps` sums a block of 32 inputs in two chains of fused multiply-adds, one over the
//! even and one over the odd inputs, each from zero. Then it adds both to each other and to
//! the sum so far. Every operation rounds to nearest even and replaces subnormal numbers by
//! zeros, before and after.

use super::tile::{LANES, PANEL, Tile};
use super::tiles::{BLOCK_STEPS, Tiles, tiles};
use crate::isa::Isa;
use crate::multiversion::multiversion;

type Lanes = [f32; LANES];

/// Returns a zero of the same sign for a subnormal number, and other numbers unchanged.
#[inline(always)]
fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    let normal = bits & 0x7f80_0000 != 0;
    f32::from_bits(if normal { bits } else { bits & 0x8000_0000 })
}

multiversion! {
    /// Adds a block of `steps` pairs of inputs to the sums of 16 columns. The rest of the
    /// block is zeros. The columns' weights lie `PANEL` words from step to step.
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
            // Zeros times zeros leave a chain as it is, unless it is a negative zero.
            for lane in 0..LANES {
                (even[lane], odd[lane]) = (even[lane] + 0.0, odd[lane] + 0.0);
            }
        }
        for lane in 0..LANES {
            sums[lane] = flush(flush(sums[lane]) + flush(even[lane] + odd[lane]));
        }
    }
}

/// Most rows for which tiles keep no sums aside, as on AMX.
const FEW: usize = 16;

/// Multiplies `M` rows by one panel; `P` and `H` are the parameters of other tiles' tables.
unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    let aside = work.aside.filter(|aside| M > FEW && !aside.sums.is_null());
    let out = (work.c, work.ldc);
    let (from, to) = match aside {
        Some(aside) if aside.complete => ((aside.sums, PANEL), out),
        Some(aside) => ((aside.sums, PANEL), (aside.sums, PANEL)),
        None => (out, out),
    };
    for row in 0..M {
        for half in 0..PANEL / LANES {
            let column = half * LANES;
            // SAFETY: the caller's promise: the pointers are valid for `M` rows
            // and the steps of a panel.
            unsafe {
                let place = |(start, stride): (*mut f32, usize)| start.add(row * stride + column);
                let (from, to) = (place(from).cast(), place(to).cast());
                columns(work, M, row, column, from, to);
            }
        }
    }
}

/// Computes 16 columns of a row: resumes the sums at `from` and leaves them at `to`.
unsafe fn columns(
    work: &Tile,
    rows: usize,
    row: usize,
    column: usize,
    from: *const Lanes,
    to: *mut Lanes,
) {
    let isa = Isa::AmxEmulated;
    // SAFETY: forwarded to the caller.
    unsafe {
        let mut sums = if work.resume {
            from.read()
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
        to.write(sums);
    }
}

pub(crate) static TILES_BF16: Tiles = tiles!(
    Blocks, bf16_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32],
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 : 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1],
    [1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1]
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of a block.
    const INPUTS: usize = 2 * BLOCK_STEPS;

    /// Kinds of bf16 numbers: a mask of free bits, and the bits that are set.
    const KINDS: [(u16, u16); 7] = [
        // Ordinary numbers; numbers whose products are just normal, and just not; and
        // subnormal numbers.
        (0x80ff, 0x3f00),
        (0x80ff, 0x2000),
        (0x80ff, 0x1f00),
        (0x807f, 0x0000),
        // Zeros, the largest numbers, and all finite ones.
        (0x8000, 0x0000),
        (0x807f, 0x7f00),
        (0xff7f, 0x0000),
    ];

    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 24) as u32
        }

        /// A number that is mostly of one kind; some are zeros of either sign.
        fn of(&mut self, (any, set): (u16, u16)) -> u16 {
            let (any, set) = if self.bits().is_multiple_of(8) {
                (0x8000, 0)
            } else {
                (any, set)
            };
            (self.bits() as u16 & any) | set
        }

        fn sum_of(&mut self, kind: (u16, u16)) -> f32 {
            let below = self.bits() & 0xffff;
            f32::from_bits(u32::from(self.of(kind)) << 16 | below)
        }
    }

    /// Replaces numbers that the standard library calls subnormal by zeros.
    fn plain_flush(x: f32) -> f32 {
        if x.is_subnormal() {
            0f32.copysign(x)
        } else {
            x
        }
    }

    /// One element of the instruction, computed in the words of its documentation.
    fn plain(sum: f32, x: &[u16; INPUTS], w: &[u16; INPUTS]) -> f32 {
        let number = |bits: u16| plain_flush(half::bf16::from_bits(bits).to_f32());
        let [even, odd] = [0, 1].map(|first| {
            (first..INPUTS).step_by(2).fold(0f32, |chain, k| {
                plain_flush(number(x[k]).mul_add(number(w[k]), chain))
            })
        });
        plain_flush(plain_flush(sum) + plain_flush(even + odd))
    }

    /// Compares a block of `steps` pairs with the plain function.
    fn compare(random: &mut Random, kinds: [(u16, u16); 3], steps: usize) {
        let mut x = [0u16; INPUTS];
        let mut w = [[0u16; INPUTS]; LANES];
        x[..2 * steps].fill_with(|| random.of(kinds[0]));
        for column in &mut w {
            column[..2 * steps].fill_with(|| random.of(kinds[1]));
        }
        let sums: Lanes = std::array::from_fn(|_| random.sum_of(kinds[2]));
        let pair = |of: &[u16; INPUTS], step: usize| {
            u32::from(of[2 * step]) | u32::from(of[2 * step + 1]) << 16
        };
        let inputs: Vec<u32> = (0..steps).map(|step| pair(&x, step)).collect();
        let mut weights = vec![0u32; steps * PANEL];
        for (step, weights) in weights.chunks_exact_mut(PANEL).enumerate() {
            for (word, column) in weights.iter_mut().zip(&w) {
                *word = pair(column, step);
            }
        }
        for isa in Isa::available() {
            let mut found = sums;
            add_block(isa, &mut found, &inputs, &weights);
            for lane in 0..LANES {
                let (found, expected) = (found[lane], plain(sums[lane], &x, &w[lane]));
                // It is not defined which of several NaNs survives.
                let same =
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(
                    same,
                    "{isa}: {found:e} instead of {expected:e}, {kinds:x?} {steps}"
                );
            }
        }
    }

    #[test]
    fn a_block_has_the_bits_of_the_instruction() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for x in KINDS {
            for w in KINDS {
                for sum in KINDS {
                    for steps in [1, 2, 7, BLOCK_STEPS - 1, BLOCK_STEPS] {
                        compare(&mut random, [x, w, sum], steps);
                    }
                }
            }
        }
    }
}
