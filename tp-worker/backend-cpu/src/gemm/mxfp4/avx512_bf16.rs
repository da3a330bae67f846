//! Tiles of 4-bit floats on `vdpbf16ps`, for inputs that are rounded to bf16.
//!
//! A word of a column has the codes of 8 inputs. One look-up turns an input of each half of the
//! word into a pair of bf16, so inputs are multiplied in the pairs (0, 4), (1, 5), (2, 6) and
//! (3, 7) of every 8, as [`Input::SplitPairs`](crate::gemm::Input) packs them. A power of two up to
//! one is taken from the bits of each value by a subtraction that stops at zero, which is exact.
//! Steps with other powers are multiplied in f32 first, which is exact, too. The products are not:
//! `vdpbf16ps` takes numbers below 2⁻¹²⁶ for zero, so values of exponents below [`LEAST`] may be lost.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castps_si512, _mm512_cmpgt_epu8_mask, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_slli_epi16, _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_sub_epi8, _mm512_sub_epi16, _mm512_subs_epu16,
};

use lockstep_backend::E2m1;

use super::avx512::{EXACT_ONE_BY_ONE, widen as widen_exact};
use super::{CODES, Expand as _, GROUPS, Kernels, RUN, RUNS, STEP, STEP_WORDS};
use crate::gemm::avx512::F32;
use crate::gemm::avx512_bf16::TILES_BF16;
use crate::gemm::prefetch::STREAMS;
use crate::gemm::tile::{LANES, PANEL, Tile};
use crate::gemm::tiles::{Tiles, tiles};
use crate::prefetch;

/// Words of a row's run, a pair each.
const PAIRS: usize = RUN / 2;
/// Exponent of one.
const ONE: u8 = 127;
/// Least exponent with which no value but zero is below 2⁻¹²⁶, the least normal number of bf16.
const LEAST: u8 = 2;
/// Steps that are on their way from memory while several panels stream.
const STEPS_AHEAD: usize = 4;

/// Values of all codes as bf16, twice: the look-up reads five bits. There is one zero, the one from
/// which subtractions leave nothing.
static VALUES: [u16; 32] = {
    let mut values = [0; 32];
    let mut code = 0;
    while code < 32 {
        let value = E2m1(code as u8 & 15).value();
        if value != 0.0 {
            values[code] = (value.to_bits() >> 16) as u16;
        }
        code += 1;
    }
    values
};

/// Bytes of 16 that become the even bytes of each word of 16; the odd ones become zero.
static SPREAD: [u8; 64] = {
    let mut places = [0x80; 64];
    let mut word = 0;
    while word < 16 {
        (places[4 * word], places[4 * word + 2]) = (word as u8, word as u8);
        word += 1;
    }
    places
};

/// The powers of two of 16 columns.
#[derive(Clone, Copy)]
struct Powers {
    /// Numbers to take from the bits of a bf16, in both halves of a column's word.
    taken: __m512i,
    /// The powers in f32, for a step that is not usual.
    exact: __m512,
}

/// Returns true if all exponents of a step are between [`LEAST`] and [`ONE`].
///
/// # Safety
/// Compiled for AVX-512; `step` points to a step.
#[inline(always)]
unsafe fn is_usual(step: *const u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let exponents = step.wrapping_add(CODES);
        let mut outside = 0;
        for part in 0..GROUPS * PANEL / 64 {
            let part = _mm512_loadu_si512(exponents.wrapping_add(part * 16).cast());
            let above = _mm512_sub_epi8(part, _mm512_set1_epi8(LEAST.cast_signed()));
            let most = _mm512_set1_epi8((ONE - LEAST).cast_signed());
            outside |= _mm512_cmpgt_epu8_mask(above, most);
        }
        outside == 0
    }
}

/// Reads 16 exponents.
#[inline(always)]
unsafe fn powers<const USUAL: bool>(from: *const u8) -> Powers {
    // SAFETY: the caller's promise.
    unsafe {
        if !USUAL {
            return Powers {
                taken: _mm512_setzero_si512(),
                exact: F32::powers(from),
            };
        }
        let exponents = _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()));
        let places = _mm512_loadu_si512(SPREAD.as_ptr().cast());
        let exponents = _mm512_shuffle_epi8(exponents, places);
        let below = _mm512_sub_epi16(_mm512_set1_epi16(i16::from(ONE)), exponents);
        Powers {
            taken: _mm512_slli_epi16::<7>(below),
            exact: _mm512_setzero_ps(),
        }
    }
}

/// Returns the values of the lowest codes of both halves of all words, as pairs.
#[inline(always)]
unsafe fn pairs<const USUAL: bool>(codes: __m512i, powers: Powers) -> __m512i {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        if USUAL {
            let table = _mm512_loadu_si512(VALUES.as_ptr().cast());
            _mm512_subs_epu16(_mm512_permutexvar_epi16(codes, table), powers.taken)
        } else {
            let [low, high] = [codes, _mm512_srli_epi32::<16>(codes)]
                .map(|codes| _mm512_castps_si512(F32::values(codes, powers.exact)));
            let high = _mm512_and_si512(high, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            _mm512_or_si512(_mm512_srli_epi32::<16>(low), high)
        }
    }
}

#[inline(always)]
fn bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of plain data.
    unsafe { std::mem::transmute(bits) }
}

/// `M` rows times `P` panels, `H` halves of a panel at a time. A row alone would wait for each
/// multiply-add of one panel.
///
/// # Safety
/// Compiled for AVX-512 with bf16; `work`'s pointers are valid for the shape it describes.
#[inline(always)]
unsafe fn tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<M, P, H>(work, half * LANES) };
    }
}

/// Computes the columns from `column` on, `16 · H` of each panel.
#[inline(always)]
unsafe fn halves<const M: usize, const P: usize, const H: usize>(work: &Tile, column: usize) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape, and prefetching
    // past the end touches nothing.
    unsafe {
        let mut acc = [[[_mm512_setzero_ps(); H]; M]; P];
        let c = work.c.add(column);
        let at = |p: usize, r: usize, h: usize| c.add(r * work.ldc + p * PANEL + h * LANES);
        if work.resume {
            for p in 0..P {
                for r in 0..M {
                    for h in 0..H {
                        acc[p][r][h] = _mm512_loadu_ps(at(p, r, h));
                    }
                }
            }
        }
        let (mut a, mut b) = (work.a, work.b);
        let mut asking = work.ahead.asking();
        for number in 0..work.steps {
            let near = match P {
                1 => asking.near,
                // Behind its last step a panel asks for the panel that comes next in its place.
                _ if number + STEPS_AHEAD / P >= work.steps => {
                    STEPS_AHEAD / P * STEP_WORDS + (P - 1) * work.panel_stride
                }
                _ => STEPS_AHEAD / P * STEP_WORDS,
            };
            if P == 1 {
                for _ in 0..GROUPS {
                    (0..STREAMS).for_each(|run| asking.ask(run));
                    asking.next();
                }
            }
            let usual = (0..P).all(|p| is_usual(b.wrapping_add(p * work.panel_stride)));
            let from = (b.wrapping_add(column), work.panel_stride);
            if usual {
                step::<M, P, H, true>(&mut acc, a, from, column, near);
            } else {
                step::<M, P, H, false>(&mut acc, a, from, column, near);
            }
            a = a.add(STEP / 2 * M);
            b = b.wrapping_add(STEP_WORDS);
        }
        for p in 0..P {
            for r in 0..M {
                for h in 0..H {
                    _mm512_storeu_ps(at(p, r, h), acc[p][r][h]);
                }
            }
        }
    }
}

/// Adds a step of `M` rows and `P` panels, and asks for weights `near` words ahead. `b` is the
/// first word of the first panel's columns, and the distance to the next panel.
#[inline(always)]
unsafe fn step<const M: usize, const P: usize, const H: usize, const USUAL: bool>(
    acc: &mut [[[__m512; H]; M]; P],
    mut a: *const u32,
    (b, panel_stride): (*const u32, usize),
    column: usize,
    near: usize,
) {
    // SAFETY: forwarded to the caller; prefetching past the end touches nothing.
    unsafe {
        for group in 0..GROUPS {
            let mut of_group = [[powers_at::<USUAL>(b, column, group); H]; P];
            for p in 0..P {
                for h in 0..H {
                    let from = b.wrapping_add(p * panel_stride + h * LANES);
                    of_group[p][h] = powers_at::<USUAL>(from, column + h * LANES, group);
                }
            }
            for run in 0..RUNS {
                for p in 0..P {
                    let place = p * panel_stride + (group * RUNS + run) * PANEL;
                    let from = b.wrapping_add(place);
                    let mut codes = [_mm512_setzero_si512(); H];
                    for h in 0..H {
                        let from = from.wrapping_add(h * LANES);
                        prefetch::near(from.wrapping_add(near));
                        codes[h] = _mm512_loadu_si512(from.cast());
                    }
                    for pair in 0..PAIRS {
                        let mut columns = codes;
                        for h in 0..H {
                            columns[h] = pairs::<USUAL>(codes[h], of_group[p][h]);
                            codes[h] = _mm512_srli_epi16::<4>(codes[h]);
                        }
                        for r in 0..M {
                            let row = bf16(_mm512_set1_epi32(*a.add(pair * M + r).cast::<i32>()));
                            for h in 0..H {
                                let sum = acc[p][r][h];
                                acc[p][r][h] = _mm512_dpbf16_ps(sum, row, bf16(columns[h]));
                            }
                        }
                    }
                }
                a = a.add(PAIRS * M);
            }
        }
    }
}

/// Reads the exponents of a group in 16 columns from `column` on, whose first word is `words`.
#[inline(always)]
unsafe fn powers_at<const USUAL: bool>(words: *const u32, column: usize, group: usize) -> Powers {
    let exponents = words.wrapping_sub(column).wrapping_add(CODES).cast::<u8>();
    // SAFETY: forwarded to the caller.
    unsafe { powers::<USUAL>(exponents.wrapping_add(group * PANEL + column)) }
}

/// Widens steps to pairs of bf16, `[64 · steps][32]`.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn widen(narrow: &[u32], wide: &mut [u32]) {
    let steps = narrow.chunks_exact(STEP_WORDS);
    for (step, wide) in steps.zip(wide.chunks_exact_mut(STEP / 2 * PANEL)) {
        // SAFETY: compiled for these instructions; a step, and room for its pairs.
        unsafe {
            if is_usual(step.as_ptr()) {
                widen_step::<true>(step, wide);
            } else {
                widen_step::<false>(step, wide);
            }
        }
    }
}

/// Widens one step.
#[inline(always)]
unsafe fn widen_step<const USUAL: bool>(step: &[u32], wide: &mut [u32]) {
    for group in 0..GROUPS {
        for column in [0, LANES] {
            // SAFETY: the caller's promise; all places lie inside of the step and of its room.
            unsafe {
                let words = step.as_ptr().add(column);
                let of_group = powers_at::<USUAL>(words, column, group);
                for run in group * RUNS..(group + 1) * RUNS {
                    let mut codes = _mm512_loadu_si512(words.add(run * PANEL).cast());
                    for pair in 0..PAIRS {
                        let to = (run * PAIRS + pair) * PANEL + column;
                        let values = pairs::<USUAL>(codes, of_group);
                        _mm512_storeu_si512(wide.as_mut_ptr().add(to).cast(), values);
                        codes = _mm512_srli_epi16::<4>(codes);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn mxfp4_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512 with bf16.
    unsafe { tile::<M, P, H>(work) }
}

static ROUNDED: Tiles = tiles!(
    SplitPairs, mxfp4_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 6 7 8 9 10 11 12 : 2 2 2 1 1 1 1 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2],
    TILES_BF16
);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT_ONE_BY_ONE, &ROUNDED],
    widen: widen_exact,
    widen_rounded: Some(widen),
};
