//! Tiles of 4-bit floats: e2m1 codes, and a power of two for every 32 inputs of a column.
//!
//! A code is looked up in a table of 16 values and multiplied by its power of two, which is
//! exact. Each output is one chain of fused multiply-adds over these, in the order of inputs. So
//! all instruction sets give the same bits, and so do slices that were widened before. With
//! `vdpbf16ps`, inputs that are rounded to bf16 are multiplied in pairs instead.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod scalar;
#[cfg(test)]
mod tests;

use super::prefetch::STREAMS;
use super::tile::{Dot, LANES, PANEL, Tile};
use super::tiles::{Element, Tiles};
use super::widen::Widening;
use crate::isa::Isa;
use crate::prefetch;
use crate::quantize::GROUP as STEP;

/// Inputs of a column that share a power of two.
pub(crate) const GROUP: usize = 32;
/// Inputs of a run, whose codes are one word of each column, the first one in the lowest bits.
const RUN: usize = 8;
/// Groups of a step, and runs of a group.
const GROUPS: usize = STEP / GROUP;
const RUNS: usize = GROUP / RUN;
/// Words of a step's codes: a word of each of 32 columns, run after run. The exponents of a
/// group in all columns, one byte each, follow for one group after the other.
const CODES: usize = GROUPS * RUNS * PANEL;
/// Words of a step: 4.25 bits for each of 128 inputs of 32 columns.
pub(crate) const STEP_WORDS: usize = CODES + GROUPS * PANEL / 4;
/// Distance in words at which weights are brought into the first-level cache while several
/// panels stream from memory.
const NEAR_STREAM: usize = 16 * PANEL;

/// Places of a column's group among the bytes of a step.
pub(crate) struct Places {
    /// Byte of the exponent.
    pub exponent: usize,
    /// First byte of the codes.
    first: usize,
}

impl Places {
    /// Returns the byte of the code of input `input`, and the place of its lowest bit there.
    pub fn code(&self, input: usize) -> (usize, u32) {
        let word = self.first + input / RUN * PANEL * 4;
        (word + input % RUN / 2, 4 * (input % 2) as u32)
    }
}

/// Returns the places of group `group` in column `lane`.
pub(crate) fn places(group: usize, lane: usize) -> Places {
    Places {
        exponent: CODES * 4 + group * PANEL + lane,
        first: (group * RUNS * PANEL + lane) * 4,
    }
}

/// Multiply-accumulate of f32, with a look-up of codes.
///
/// # Safety
/// The conditions of [`Dot`]; 16 words of codes, and 16 exponents, are readable.
trait Expand: Dot<B = <Self as Dot>::Acc> {
    /// A word of codes of each of 16 columns.
    type Codes: Copy;
    unsafe fn codes(from: *const u32) -> Self::Codes;
    /// The powers of two of 16 exponents; infinity for those that are no numbers.
    unsafe fn powers(from: *const u8) -> Self::B;
    /// The values of the lowest codes of all words, times the powers.
    unsafe fn values(codes: Self::Codes, powers: Self::B) -> Self::B;
    /// Brings the next codes to the lowest place.
    unsafe fn next(codes: Self::Codes) -> Self::Codes;
}

/// `M` rows times `P` panels, `H` halves of a panel at a time.
///
/// # Safety
/// The conditions of [`Expand`]; `work`'s pointers are valid for the shape it describes.
#[inline(always)]
unsafe fn tile<D: Expand, const M: usize, const P: usize, const H: usize>(work: &Tile) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<D, M, P, H>(work, half * LANES) };
    }
}

/// Computes the columns from `column` on, `16 · H` of each panel.
#[inline(always)]
unsafe fn halves<D: Expand, const M: usize, const P: usize, const H: usize>(
    work: &Tile,
    column: usize,
) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape,
    // and prefetching past the end touches nothing.
    unsafe {
        let mut acc = [[[D::zero(); H]; M]; P];
        let c = work.c.add(column);
        let at = |p: usize, r: usize, h: usize| c.add(r * work.ldc + p * PANEL + h * LANES);
        if work.resume {
            for p in 0..P {
                for r in 0..M {
                    for h in 0..H {
                        acc[p][r][h] = D::load(at(p, r, h));
                    }
                }
            }
        }
        let (mut a, mut step) = (work.a, work.b);
        let mut asking = work.ahead.asking();
        let near = if P == 1 { asking.near } else { NEAR_STREAM };
        let mut turn = 0;
        for _ in 0..work.steps {
            for group in 0..GROUPS {
                let mut powers = [[D::zero(); H]; P];
                for p in 0..P {
                    let exponents = step.wrapping_add(p * work.panel_stride + CODES);
                    let exponents = exponents.cast::<u8>().wrapping_add(group * PANEL + column);
                    for h in 0..H {
                        powers[p][h] = D::powers(exponents.wrapping_add(h * LANES));
                    }
                }
                for run in 0..RUNS {
                    if P == 1 {
                        asking.ask(turn);
                        turn = (turn + 1) % STREAMS;
                        if turn == 0 {
                            asking.next();
                        }
                    }
                    let b = step.wrapping_add((group * RUNS + run) * PANEL + column);
                    multiply::<D, M, P, H>(&mut acc, a, b, near, work.panel_stride, &powers);
                    a = a.add(RUN * M);
                }
            }
            step = step.wrapping_add(STEP_WORDS);
        }
        for p in 0..P {
            for r in 0..M {
                for h in 0..H {
                    D::store(at(p, r, h), acc[p][r][h]);
                }
            }
        }
    }
}

/// Adds one run of `M` rows and `P` panels; asks for the run `near` words ahead.
#[inline(always)]
unsafe fn multiply<D: Expand, const M: usize, const P: usize, const H: usize>(
    acc: &mut [[[D::Acc; H]; M]; P],
    a: *const u32,
    b: *const u32,
    near: usize,
    panel_stride: usize,
    powers: &[[D::B; H]; P],
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        for p in 0..P {
            let panel = b.wrapping_add(p * panel_stride);
            let mut codes = [D::codes(panel); H];
            for h in 0..H {
                prefetch::near(panel.wrapping_add(near + h * LANES));
                codes[h] = D::codes(panel.wrapping_add(h * LANES));
            }
            for input in 0..RUN {
                let mut columns = [D::zero(); H];
                for h in 0..H {
                    columns[h] = D::values(codes[h], powers[p][h]);
                    codes[h] = D::next(codes[h]);
                }
                for r in 0..M {
                    let row = D::a(a.add(input * M + r));
                    for h in 0..H {
                        acc[p][r][h] = D::dot(acc[p][r][h], row, columns[h]);
                    }
                }
            }
        }
    }
}

/// Widens steps to f32, `[128 · steps][32]`.
///
/// # Safety
/// The conditions of [`Expand`].
#[inline(always)]
unsafe fn widen_steps<D: Expand>(narrow: &[u32], wide: &mut [u32]) {
    let steps = narrow.chunks_exact(STEP_WORDS);
    for (step, wide) in steps.zip(wide.chunks_exact_mut(STEP * PANEL)) {
        for group in 0..GROUPS {
            for column in [0, LANES] {
                // SAFETY: the caller's promise; all places lie inside of the step and of its
                // room.
                unsafe {
                    let exponents = step.as_ptr().add(CODES).cast::<u8>();
                    let powers = D::powers(exponents.add(group * PANEL + column));
                    for run in 0..RUNS {
                        let first = group * RUNS + run;
                        let mut codes = D::codes(step.as_ptr().add(first * PANEL + column));
                        for input in 0..RUN {
                            let to = (first * RUN + input) * PANEL + column;
                            D::store(wide.as_mut_ptr().add(to).cast(), D::values(codes, powers));
                            codes = D::next(codes);
                        }
                    }
                }
            }
        }
    }
}

/// A compiled [`widen_steps`], or one that writes pairs of bf16.
type WidenFn = unsafe fn(&[u32], &mut [u32]);

/// Kernels of an instruction set.
struct Kernels {
    /// Tiles for inputs of 32 bits, and for inputs that are rounded to bf16.
    tiles: [&'static Tiles; 2],
    /// See [`widen_steps`].
    widen: WidenFn,
    /// Widens steps to pairs of bf16, where tiles for rounded inputs multiply those.
    widen_rounded: Option<WidenFn>,
}

/// The kernels for a machine.
fn kernels(isa: Isa) -> &'static Kernels {
    match isa.vectors() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => &avx512_bf16::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::KERNELS,
        // NEON too: plain Rust, of which the compiler makes vectors.
        _ => &scalar::KERNELS,
    }
}

/// The tiles for a machine, with inputs as products in `inputs` round them.
pub(crate) fn select(isa: Isa, inputs: Element) -> &'static Tiles {
    let [exact, rounded] = kernels(isa).tiles;
    match inputs {
        Element::F32 => exact,
        Element::Bf16 => rounded,
    }
}

/// Blocks of rows from which on widening a slice once costs less than widening it for every
/// block.
const WIDEN_BLOCKS: usize = 3;

/// Blocks of rows from which on widening a slice to pairs costs less.
const WIDEN_PAIR_BLOCKS: usize = 2;

/// The way in which slices are widened to f32.
static WIDEN: Widening = Widening {
    narrow_words: STEP_WORDS,
    step_words: STEP * PANEL,
    blocks: |_| WIDEN_BLOCKS,
    // SAFETY: a backend is built only for an instruction set that this machine runs.
    widen: |isa, narrow, wide| unsafe { (kernels(isa).widen)(narrow, wide) },
};

/// The way in which slices are widened to pairs of bf16.
static WIDEN_PAIRS: Widening = Widening {
    narrow_words: STEP_WORDS,
    step_words: STEP / 2 * PANEL,
    blocks: |_| WIDEN_PAIR_BLOCKS,
    widen: |isa, narrow, wide| {
        if let Some(widen) = kernels(isa).widen_rounded {
            // SAFETY: as above.
            unsafe { widen(narrow, wide) }
        }
    },
};

/// The way in which slices are widened for the tiles of [`select`].
pub(crate) fn widening(isa: Isa, inputs: Element) -> &'static Widening {
    match (inputs, kernels(isa).widen_rounded) {
        (Element::Bf16, Some(_)) => &WIDEN_PAIRS,
        _ => &WIDEN,
    }
}
