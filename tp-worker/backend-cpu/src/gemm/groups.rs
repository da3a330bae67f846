//! Tiles of integers in groups: exact integer sums inside a group, f32 over the groups of a step,
//! in order.
//!
//! Inputs are rounded to integers with one scale for each step of 128 ([`crate::quantize::Parts`]):
//! of 8 bits for codes of 4 bits, and of 16 bits for codes of 8 bits. A step adds up, group after
//! group, `sum of codes · scale` and `sum of inputs · −minimum`, each with one fused
//! multiply-add, and is then multiplied by the inputs' scale as it is added to the total. So every
//! instruction set gives the same bits.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod expand;
mod kernels;
mod layout;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::mem::MaybeUninit;

pub(crate) use kernels::{describe, select};
pub(crate) use layout::{Layout, Places};

use super::prefetch::Asking;
use super::quantized::{Lanes, Place, Step, near};
use super::tile::{LANES, PANEL, Tile};
use crate::prefetch;
use crate::quantize::{GROUP_WORDS, Parts};
use codes::Codes;
use expand::Scales;

/// Arithmetic for groups, in one instruction set.
///
/// # Safety
/// The conditions of [`Lanes`].
trait GroupLanes: Lanes {
    /// One word, in all lanes.
    unsafe fn word(from: *const u32) -> Self::Words;
    /// The four codes in the low and the four in the high halves of bytes.
    unsafe fn halves(words: Self::Words) -> [Self::Words; 2];
    /// Entries of `table`, by codes.
    unsafe fn entries(codes: Self::Words, table: *const u8) -> Self::Words;
    /// `256 · high + low`.
    unsafe fn join(high: Self::Words, low: Self::Words) -> Self::Words;
    /// The nearest f32 of integers, ties to even.
    unsafe fn floats(words: Self::Words) -> Self::Floats;
    /// One float, in all lanes.
    unsafe fn float(from: *const f32) -> Self::Floats;
    /// The values of 16 IEEE halves.
    unsafe fn f16(from: *const u8) -> Self::Floats;
    /// The values of 16 bfloat16.
    unsafe fn bfloat16(from: *const u8) -> Self::Floats;
    /// The values of 16 signed bytes.
    unsafe fn small(from: *const u8) -> Self::Floats;
    unsafe fn product(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `acc + a · b`, rounded once.
    unsafe fn add_product(acc: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// A compiled [`expand::expand`].
    unsafe fn expand(layout: &Layout, numbers: *const u8, halves: [usize; 2], room: *mut Scales);
}

/// Steps of integers in groups with codes `C`.
struct Groups<C>(PhantomData<C>);

impl<L: GroupLanes, C: Codes> Step<L> for Groups<C> {
    #[inline(always)]
    fn step_words(work: &Tile) -> usize {
        work.layout.step_words
    }

    #[inline(always)]
    fn row_words(work: &Tile) -> usize {
        Parts::words_of(C::WIDE, work.layout.groups)
    }

    #[inline(always)]
    unsafe fn add<const M: usize, const P: usize, const H: usize>(
        acc: &mut [[[L::Floats; H]; M]; P],
        place: Place<'_>,
        asking: &mut Asking,
    ) {
        let (layout, half) = (place.work.layout, place.half);
        let mut room = [const { MaybeUninit::<Scales>::uninit() }; P];
        // SAFETY: the caller's promise; scales are read where `expand` wrote them.
        unsafe {
            for p in 0..P {
                let room = room[p].as_mut_ptr();
                L::expand(layout, numbers::<P>(place, p, asking), [half, H], room);
            }
            let sums_at = Parts::scale_word(C::WIDE) + 1;
            let totals_at = sums_at + layout.groups;
            let mut totals = [[[L::zero(); H]; M]; P];
            for group in 0..layout.groups {
                let sums = sums::<C, L, M, P, H>(place, group, asking);
                for p in 0..P {
                    let room = room[p].as_mut_ptr();
                    for h in 0..H {
                        let scales = L::load(Scales::at(room, group, 0, half + h));
                        for r in 0..M {
                            let total = &mut totals[p][r][h];
                            *total = L::add_product(*total, L::floats(sums[p][r][h]), scales);
                        }
                        if layout.min_factor.is_none() {
                            continue;
                        }
                        let mins = L::load(Scales::at(room, group, 1, half + h));
                        for r in 0..M {
                            let inputs = place.a.add((totals_at + group) * M + r).cast();
                            let total = &mut totals[p][r][h];
                            *total = L::add_product(*total, L::float(inputs), mins);
                        }
                    }
                }
            }
            for r in 0..M {
                let scale = L::float(place.a.add((sums_at - 1) * M + r).cast());
                for p in 0..P {
                    for h in 0..H {
                        acc[p][r][h] = L::add_product(acc[p][r][h], totals[p][r][h], scale);
                    }
                }
            }
        }
    }
}

/// The numbers behind the codes of panel `p`; asks for those of later steps.
#[inline(always)]
unsafe fn numbers<const P: usize>(place: Place<'_>, p: usize, asking: &mut Asking) -> *const u8 {
    /// Words of a cache line.
    const LINE: usize = 16;
    let layout = place.work.layout;
    let step = place.b.wrapping_add(p * place.work.panel_stride);
    let numbers = step.wrapping_add(layout.code_words);
    let words = layout.step_words - layout.code_words;
    for line in 0..words / LINE {
        prefetch::near(numbers.wrapping_add(near(P, asking) + line * LINE));
    }
    if P == 1 {
        (0..words / PANEL).for_each(|_| asking.step());
    }
    numbers.cast()
}

/// Exact integer sums over a group.
#[inline(always)]
unsafe fn sums<C: Codes, L: GroupLanes, const M: usize, const P: usize, const H: usize>(
    place: Place<'_>,
    group: usize,
    asking: &mut Asking,
) -> [[[L::Words; H]; M]; P] {
    let Place { a, b, work, half } = place;
    // SAFETY: the caller's promise; prefetching past the end touches nothing.
    unsafe {
        let undo = a.add((Parts::scale_word(C::WIDE) + 1 + group) * M);
        let mut low = [[[L::no_words(); H]; M]; P];
        let mut high = [[[L::no_words(); H]; M]; P];
        for r in 0..M {
            let start = C::start::<L>(undo.add(r));
            for p in 0..P {
                low[p][r] = [start; H];
            }
        }
        let words = C::WORDS / work.layout.groups;
        for word in group * words..(group + 1) * words {
            if P == 1 {
                asking.step();
            }
            for p in 0..P {
                let panel = b.add(p * work.panel_stride + word * PANEL + half * LANES);
                let mut weights = [C::load::<L>(L::words(panel), work.layout); H];
                for h in 0..H {
                    prefetch::near(panel.wrapping_add(near(P, asking) + h * LANES));
                    weights[h] = C::load::<L>(L::words(panel.add(h * LANES)), work.layout);
                }
                for four in 0..C::FOURS {
                    for r in 0..M {
                        let inputs = a.add((C::FOURS * word + four) * M + r);
                        let bytes = L::bytes(inputs);
                        for h in 0..H {
                            low[p][r][h] = L::dot(low[p][r][h], weights[h][four], bytes);
                        }
                        if C::WIDE {
                            let bytes = L::bytes(inputs.add(GROUP_WORDS * M));
                            for h in 0..H {
                                high[p][r][h] = L::dot(high[p][r][h], weights[h][four], bytes);
                            }
                        }
                    }
                }
            }
        }
        if C::WIDE {
            for p in 0..P {
                for r in 0..M {
                    for h in 0..H {
                        low[p][r][h] = L::join(high[p][r][h], low[p][r][h]);
                    }
                }
            }
        }
        low
    }
}
