//! 8-bit weights, one scale per column and group.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use super::{Format, Lanes, near};
use crate::gemm::prefetch::{Asking, STREAMS};
use crate::gemm::tile::{LANES, PANEL};
use crate::prefetch;
use crate::quantize::{GROUP_WORDS, UNDO_INT8};

/// A step is `[32][32]` words, each with four consecutive weights of a column plus 128, the
/// earliest in the low byte. Then come 16 words with the scales of columns `j` (low half)
/// and `16 + j` (high half) as bf16.
pub(super) struct Int8;

/// Words of a step's weights.
const WEIGHTS: usize = GROUP_WORDS * PANEL;
/// Words of a step.
pub(crate) const STEP_WORDS: usize = WEIGHTS + LANES;

impl Format for Int8 {
    const STEP_WORDS: usize = STEP_WORDS;

    #[inline(always)]
    unsafe fn sums<L: Lanes, const M: usize, const P: usize, const H: usize>(
        a: *const u32,
        b: *const u32,
        stride: usize,
        half: usize,
        asking: &mut Asking,
    ) -> [[[L::Words; H]; M]; P] {
        // SAFETY: the caller's promise; prefetching past the end touches nothing.
        unsafe {
            let undo = a.add(UNDO_INT8 * M);
            let mut sums = [[[L::start(undo); H]; M]; P];
            for r in 1..M {
                for p in 0..P {
                    sums[p][r] = [L::start(undo.add(r)); H];
                }
            }
            for word in 0..GROUP_WORDS {
                if P == 1 {
                    asking.ask(word % STREAMS);
                    if word % STREAMS == STREAMS - 1 {
                        asking.next();
                    }
                }
                for p in 0..P {
                    let panel = b.add(p * stride + word * PANEL + half * LANES);
                    for h in 0..H {
                        prefetch::near(panel.wrapping_add(near(P, asking) + h * LANES));
                    }
                    let mut weights = [L::int8(L::words(panel)); H];
                    for h in 1..H {
                        weights[h] = L::int8(L::words(panel.add(h * LANES)));
                    }
                    for r in 0..M {
                        let inputs = L::bytes(a.add(word * M + r));
                        for h in 0..H {
                            sums[p][r][h] = L::dot(sums[p][r][h], weights[h], inputs);
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
        unsafe { L::bf16(L::words(b.add(WEIGHTS)), half) }
    }
}
