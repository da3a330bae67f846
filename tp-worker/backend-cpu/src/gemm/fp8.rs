//! Tiles of 8-bit floats: e4m3 codes, and a factor for every few inputs of a column.
//!
//! A code is widened in registers and multiplied by its factor, which rounds once. The result
//! is the f32 that dequantising the checkpoint gives. Each output is one chain of fused
//! multiply-adds over these, in the order of inputs. So all instruction sets give the same
//! bits, and so do slices that were widened before. With `vdpbf16ps`, inputs that are rounded to
//! bf16 are multiplied in pairs by the codes instead, and sums by the factors.

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
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;

pub(super) use scalar::Fused;

use super::prefetch::STREAMS;
use super::tile::{Dot, LANES, PANEL, Tile};
use super::tiles::{Element, Tiles};
use super::widen::Widening;
use crate::isa::Isa;
use crate::prefetch;
use crate::quantize::GROUP;

/// Inputs of a run, whose codes are one word of each column.
pub(crate) const RUN: usize = 4;
/// Runs of a step.
const RUNS: usize = GROUP / RUN;
/// The largest power of two of factors of a column in a step.
pub(crate) const MOST_SCALES: usize = RUNS;
/// Factors hold scales times this, since codes are widened to values over it.
pub(crate) const CODE_SCALE: f32 = 256.0;
/// Distance in words at which weights are brought into the first-level cache while several
/// panels stream from memory.
const NEAR_STREAM: usize = 16 * PANEL;

/// Words of a step with `scales` factors of each column.
///
/// A step is as many parts one behind the other. A part is its runs, `[runs][2 halves][4
/// inputs][16 columns]` codes, and then 32 f32, the factors of all columns.
pub(crate) const fn step_words(scales: usize) -> usize {
    (RUNS + scales) * PANEL
}

/// Index of a code among the bytes of a part: input `input` of the part, in column `lane`.
pub(crate) fn place(input: usize, lane: usize) -> usize {
    let half = lane / LANES * RUN + input % RUN;
    input / RUN * (4 * PANEL) + half * LANES + lane % LANES
}

/// Multiply-accumulate of f32, with widening of codes.
///
/// # Safety
/// The conditions of [`Dot`]; 16 codes are readable.
trait Widen: Dot<B = <Self as Dot>::Acc> {
    /// 16 codes, each widened to its value over [`CODE_SCALE`], times the columns' factors.
    unsafe fn widen(codes: *const u8, factors: Self::B) -> Self::B;
}

/// `M` rows times `P` panels, `H` halves of a panel at a time.
///
/// # Safety
/// The conditions of [`Widen`]; `work`'s pointers are valid for the shape it describes.
#[inline(always)]
unsafe fn tile<D: Widen, const M: usize, const P: usize, const H: usize>(work: &Tile) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<D, M, P, H>(work, half * LANES) };
    }
}

/// Computes the columns from `column` on, `16 · H` of each panel.
#[inline(always)]
unsafe fn halves<D: Widen, const M: usize, const P: usize, const H: usize>(
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
        let (mut a, mut b) = (work.a, work.b.wrapping_add(column));
        let mut asking = work.ahead.asking();
        let near = if P == 1 { asking.near } else { NEAR_STREAM };
        let (runs, mut turn) = (RUNS / work.scales, 0);
        for _ in 0..work.steps * work.scales {
            let mut factors = [[D::zero(); H]; P];
            for p in 0..P {
                for h in 0..H {
                    let place = b.add(p * work.panel_stride + runs * PANEL + h * LANES);
                    factors[p][h] = D::b(place, 0);
                }
            }
            for _ in 0..runs {
                if P == 1 {
                    asking.ask(turn);
                    turn = (turn + 1) % STREAMS;
                    if turn == 0 {
                        asking.next();
                    }
                }
                run::<D, M, P, H>(&mut acc, a, b, near, work.panel_stride, &factors);
                a = a.add(RUN * M);
                b = b.wrapping_add(PANEL);
            }
            b = b.wrapping_add(PANEL);
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
unsafe fn run<D: Widen, const M: usize, const P: usize, const H: usize>(
    acc: &mut [[[D::Acc; H]; M]; P],
    a: *const u32,
    b: *const u32,
    near: usize,
    panel_stride: usize,
    factors: &[[D::B; H]; P],
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        for p in 0..P {
            let panel = b.wrapping_add(p * panel_stride);
            for h in 0..H {
                prefetch::near(panel.wrapping_add(near + h * LANES));
            }
            for input in 0..RUN {
                let mut columns = [D::zero(); H];
                for h in 0..H {
                    let codes = panel.add(h * LANES).cast::<u8>().add(input * LANES);
                    columns[h] = D::widen(codes, factors[p][h]);
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
/// The conditions of [`Widen`].
#[inline(always)]
unsafe fn widen_steps<D: Widen>(scales: usize, narrow: &[u32], wide: &mut [u32]) {
    let runs = RUNS / scales;
    let parts = narrow.chunks_exact((runs + 1) * PANEL);
    for (part, wide) in parts.zip(wide.chunks_exact_mut(runs * RUN * PANEL)) {
        for column in [0, LANES] {
            // SAFETY: the caller's promise; all places lie inside of the part and of its
            // room.
            unsafe {
                let factors = D::b(part.as_ptr().add(runs * PANEL + column), 0);
                for input in 0..runs * RUN {
                    let codes = part.as_ptr().cast::<u8>().add(place(input, column));
                    let to = wide.as_mut_ptr().add(input * PANEL + column);
                    D::store(to.cast(), D::widen(codes, factors));
                }
            }
        }
    }
}

/// A compiled [`widen_steps`], or one that writes pairs of bf16.
type WidenFn = unsafe fn(usize, &[u32], &mut [u32]);

/// Kernels of an instruction set.
struct Kernels {
    /// Tiles for inputs of 32 bits, and for inputs that are rounded to bf16.
    tiles: [&'static Tiles; 2],
    /// See [`widen_steps`].
    widen: WidenFn,
    /// Kernels that multiply rounded inputs in pairs; `None` where there is no such instruction.
    pairs: Option<Pairs>,
}

/// Kernels for pairs of bf16. A pair has an input of each of two runs, so they serve steps whose
/// factors hold for two runs or more.
struct Pairs {
    /// Tiles for inputs that are rounded to bf16.
    tiles: &'static Tiles,
    /// Widens codes to pairs, and copies factors.
    widen: WidenFn,
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
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon::KERNELS,
        _ => &scalar::KERNELS,
    }
}

/// The kernels for pairs that multiply steps with `scales` factors of each column, with inputs as
/// products in `inputs` round them; `None` if others do.
fn pairs(isa: Isa, inputs: Element, scales: usize) -> Option<&'static Pairs> {
    let pairs = kernels(isa).pairs.as_ref();
    pairs.filter(|_| inputs == Element::Bf16 && scales < MOST_SCALES)
}

/// The tiles for a machine and steps with `scales` factors of each column, with inputs as products
/// in `inputs` round them.
pub(crate) fn select(isa: Isa, inputs: Element, scales: usize) -> &'static Tiles {
    let [exact, rounded] = kernels(isa).tiles;
    match (inputs, pairs(isa, inputs, scales)) {
        (_, Some(pairs)) => pairs.tiles,
        (Element::F32, None) => exact,
        (Element::Bf16, None) => rounded,
    }
}

/// Blocks of rows from which on widening a slice once costs less than widening it for every
/// block.
const WIDEN_BLOCKS: usize = 3;

/// Blocks of rows from which on widening a slice to pairs costs less.
const WIDEN_PAIR_BLOCKS: usize = 2;

/// The ways in which slices are widened.
pub(crate) struct Widenings {
    /// Factors of a column in a step.
    scales: usize,
    /// To f32.
    exact: Widening,
    /// To pairs of bf16, with factors behind them.
    pairs: Widening,
}

impl Widenings {
    /// Returns the ways for slices with `SCALES` factors of a column in a step.
    pub(crate) const fn new<const SCALES: usize>() -> Self {
        Self {
            scales: SCALES,
            exact: Widening {
                narrow_words: step_words(SCALES),
                step_words: GROUP * PANEL,
                blocks: |_| WIDEN_BLOCKS,
                // SAFETY: a backend is built only for an instruction set that this machine runs.
                widen: |isa, narrow, wide| unsafe { (kernels(isa).widen)(SCALES, narrow, wide) },
            },
            pairs: Widening {
                narrow_words: step_words(SCALES),
                step_words: (GROUP / 2 + SCALES) * PANEL,
                blocks: |_| WIDEN_PAIR_BLOCKS,
                widen: |isa, narrow, wide| {
                    if let Some(pairs) = &kernels(isa).pairs {
                        // SAFETY: as above.
                        unsafe { (pairs.widen)(SCALES, narrow, wide) }
                    }
                },
            },
        }
    }

    /// Returns the way for the tiles of [`select`].
    pub(crate) fn select(&self, isa: Isa, inputs: Element) -> &Widening {
        match pairs(isa, inputs, self.scales) {
            Some(_) => &self.pairs,
            None => &self.exact,
        }
    }
}
