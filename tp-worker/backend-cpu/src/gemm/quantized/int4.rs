//! 4-bit weights. Their scales are small multiples of one scale per column and group.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use super::{Format, Lanes, near};
use crate::gemm::prefetch::{Asking, STREAMS};
use crate::gemm::tile::{LANES, PANEL};
use crate::prefetch;
use crate::quantize::{GROUP_WORDS, UNDO_INT4};

/// A step is `[16][32]` words, each with eight weights of a column plus 8: four consecutive
/// weights in the low halves of its bytes, the next four in the high halves. Then come 32
/// words with the columns' scales: four multipliers of 5 bits, for 32 inputs each, the
/// earliest lowest. Above the multipliers are the 12 bits of a positive float with 8 bits of
/// exponent and 4 of mantissa.
pub(super) struct Int4;

/// Parts of a step that have a multiplier each.
const PARTS: usize = 4;
/// Words of a step's weights.
const WEIGHTS: usize = GROUP_WORDS / 2 * PANEL;
/// Words of a step.
pub(crate) const STEP_WORDS: usize = WEIGHTS + PANEL;

impl Format for Int4 {
    const STEP_WORDS: usize = STEP_WORDS;

    #[inline(always)]
    unsafe fn sums<L: Lanes, const M: usize, const P: usize, const H: usize>(
        a: *const u32,
        b: *const u32,
        stride: usize,
        half: usize,
        asking: &mut Asking,
    ) -> [[[L::Words; H]; M]; P] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[[L::no_words(); H]; M]; P];
            for part in 0..PARTS {
                let products = products::<L, M, P, H>(a, b, stride, half, part, asking);
                for p in 0..P {
                    let scales = b.add(p * stride + WEIGHTS + half * LANES);
                    for h in 0..H {
                        let multipliers = L::multipliers(L::words(scales.add(h * LANES)), part);
                        for r in 0..M {
                            let (sum, product) = (&mut sums[p][r][h], products[p][r][h]);
                            *sum = L::add_multiple(*sum, product, multipliers);
                        }
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn scales<L: Lanes>(b: *const u32, half: usize) -> L::Floats {
        // SAFETY: the caller's promise.
        unsafe {
            let words = b.add(WEIGHTS + half * LANES);
            L::float12(L::words(words))
        }
    }
}

/// Sums over a part of a step: at most 32 · 127 · 8, which fits 16 bits.
#[inline(always)]
unsafe fn products<L: Lanes, const M: usize, const P: usize, const H: usize>(
    a: *const u32,
    b: *const u32,
    stride: usize,
    half: usize,
    part: usize,
    asking: &mut Asking,
) -> [[[L::Words; H]; M]; P] {
    // SAFETY: forwarded to the caller; prefetching past the end touches nothing.
    unsafe {
        let undo = a.add((UNDO_INT4 + part) * M);
        let mut sums = [[[L::start(undo); H]; M]; P];
        for r in 1..M {
            for p in 0..P {
                sums[p][r] = [L::start(undo.add(r)); H];
            }
        }
        let words = GROUP_WORDS / PARTS / 2;
        for word in part * words..(part + 1) * words {
            if P == 1 {
                asking.ask(word % STREAMS);
                if word % STREAMS == STREAMS - 1 {
                    asking.next();
                }
            }
            for p in 0..P {
                let panel = b.add(p * stride + word * PANEL + half * LANES);
                let mut weights = [L::int4(L::words(panel)); H];
                for h in 0..H {
                    prefetch::near(panel.wrapping_add(near(P, asking) + h * LANES));
                    weights[h] = L::int4(L::words(panel.add(h * LANES)));
                }
                for four in 0..2 {
                    for r in 0..M {
                        let inputs = L::bytes(a.add((2 * word + four) * M + r));
                        for h in 0..H {
                            let sum = &mut sums[p][r][h];
                            *sum = L::dot(*sum, weights[h][four], inputs);
                        }
                    }
                }
            }
        }
        sums
    }
}
