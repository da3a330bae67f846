//! Tiles of 4-bit floats on `vdpbf16ps`, for inputs that are rounded to bf16.
//!
//! A word of a column has the codes of 8 inputs. One look-up turns an input of each half of the
//! word into a pair of bf16, so inputs are multiplied in the pairs (0, 4), (1, 5), (2, 6) and
//! (3, 7) of every 8, as [`Input::SplitPairs`](crate::gemm::Input) packs them. A power of two is
//! added to the exponent of each value that is not zero, which is exact. Steps in which an exponent
//! would leave its bits are multiplied in f32 first, which is exact, too.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm_loadu_si128, _mm512_and_si512, _mm512_castps_si512,
    _mm512_cmpgt_epu8_mask, _mm512_cvtepu8_epi32, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_add_epi16, _mm512_or_si512, _mm512_permutexvar_epi16,
    _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_srli_epi32,
    _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi8, _mm512_sub_epi16,
    _mm512_test_epi16_mask,
};

use lockstep_backend::E2m1;

use super::avx512::{EXACT_ONE_BY_ONE, widen as widen_exact};
use super::{CODES, Expand as _, GROUPS, Kernels, RUN, RUNS, STEP, STEP_WORDS};
use crate::gemm::avx512::F32;
use crate::gemm::avx512_bf16::TILES_BF16;
use crate::gemm::prefetch::{Asking, STREAMS};
use crate::gemm::tile::{LANES, PANEL, Tile};
use crate::gemm::tiles::{Tiles, tiles};
use crate::prefetch;

/// Words of a row's run, a pair each.
const PAIRS: usize = RUN / 2;
/// Exponents with which all values other than zero are neither subnormal nor infinite in bf16.
const LEAST: u8 = 2;
const MOST: u8 = 252;

/// Values of all codes as bf16, twice: the look-up reads five bits.
static VALUES: [u16; 32] = {
    let mut values = [0; 32];
    let mut code = 0;
    while code < 32 {
        values[code] = (E2m1(code as u8 & 15).value().to_bits() >> 16) as u16;
        code += 1;
    }
    values
};

/// Exponents of 16 columns, in the form in which [`pairs`] adds them.
#[derive(Clone, Copy)]
struct Powers {
    /// What is added to the bits of a bf16, in both halves of a column's word.
    added: __m512i,
    /// The powers in f32, for a step that is not usual.
    exact: __m512,
}

/// Returns true if all exponents of a step are between [`LEAST`] and [`MOST`].
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
            let most = _mm512_set1_epi8((MOST - LEAST).cast_signed());
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
        let exact = if USUAL {
            _mm512_setzero_ps()
        } else {
            F32::powers(from)
        };
        let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        let both = _mm512_or_si512(
            _mm512_slli_epi32::<7>(exponents),
            _mm512_slli_epi32::<23>(exponents),
        );
        let added = _mm512_sub_epi16(both, _mm512_set1_epi16(127 << 7));
        Powers { added, exact }
    }
}

/// Returns the values of the lowest codes of both halves of all words, as pairs.
#[inline(always)]
unsafe fn pairs<const USUAL: bool>(codes: __m512i, powers: Powers) -> __m512i {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        if USUAL {
            let table = _mm512_loadu_si512(VALUES.as_ptr().cast());
            let values = _mm512_permutexvar_epi16(codes, table);
            let other = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(7));
            _mm512_mask_add_epi16(values, other, values, powers.added)
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

/// `M` rows times a panel, `H` halves of it at a time.
///
/// # Safety
/// Compiled for AVX-512 with bf16; `work`'s pointers are valid for the shape it describes.
#[inline(always)]
unsafe fn tile<const M: usize, const H: usize>(work: &Tile) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<M, H>(work, half * LANES) };
    }
}

/// Computes the columns from `column` on, `16 · H` of them.
#[inline(always)]
unsafe fn halves<const M: usize, const H: usize>(work: &Tile, column: usize) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); H]; M];
        let at = |r: usize, h: usize| work.c.add(column + r * work.ldc + h * LANES);
        if work.resume {
            for r in 0..M {
                for h in 0..H {
                    acc[r][h] = _mm512_loadu_ps(at(r, h));
                }
            }
        }
        let (mut a, mut b) = (work.a, work.b);
        let mut asking = work.ahead.asking();
        for _ in 0..work.steps {
            if is_usual(b) {
                step::<M, H, true>(&mut acc, a, b, column, &mut asking);
            } else {
                step::<M, H, false>(&mut acc, a, b, column, &mut asking);
            }
            a = a.add(STEP / 2 * M);
            b = b.wrapping_add(STEP_WORDS);
        }
        for r in 0..M {
            for h in 0..H {
                _mm512_storeu_ps(at(r, h), acc[r][h]);
            }
        }
    }
}

/// Adds a step of `M` rows, and asks for memory ahead.
#[inline(always)]
unsafe fn step<const M: usize, const H: usize, const USUAL: bool>(
    acc: &mut [[__m512; H]; M],
    mut a: *const u32,
    b: *const u32,
    column: usize,
    asking: &mut Asking,
) {
    // SAFETY: forwarded to the caller; prefetching past the end touches nothing.
    unsafe {
        for group in 0..GROUPS {
            let exponents = b.wrapping_add(CODES).cast::<u8>();
            let exponents = exponents.wrapping_add(group * PANEL + column);
            let mut of_group = [powers::<USUAL>(exponents); H];
            for h in 1..H {
                of_group[h] = powers::<USUAL>(exponents.wrapping_add(h * LANES));
            }
            for run in 0..RUNS {
                asking.ask(run % STREAMS);
                let from = b.wrapping_add((group * RUNS + run) * PANEL + column);
                let mut codes = [_mm512_setzero_si512(); H];
                for h in 0..H {
                    let from = from.wrapping_add(h * LANES);
                    prefetch::near(from.wrapping_add(asking.near));
                    codes[h] = _mm512_loadu_si512(from.cast());
                }
                for pair in 0..PAIRS {
                    let mut columns = codes;
                    for h in 0..H {
                        columns[h] = pairs::<USUAL>(codes[h], of_group[h]);
                        codes[h] = _mm512_srli_epi16::<4>(codes[h]);
                    }
                    for r in 0..M {
                        let row = bf16(_mm512_set1_epi32(*a.add(pair * M + r).cast::<i32>()));
                        for h in 0..H {
                            acc[r][h] = _mm512_dpbf16_ps(acc[r][h], row, bf16(columns[h]));
                        }
                    }
                }
                a = a.add(PAIRS * M);
            }
            asking.next();
        }
    }
}

/// Widens steps to pairs of bf16, `[64 · steps][32]`.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn widen(narrow: &[u32], wide: &mut [u32]) {
    let steps = narrow.chunks_exact(STEP_WORDS);
    for (step, wide) in steps.zip(wide.chunks_exact_mut(STEP / 2 * PANEL)) {
        // SAFETY: as below.
        if unsafe { is_usual(step.as_ptr()) } {
            // SAFETY: compiled for these instructions; a step, and room for its pairs.
            unsafe { widen_step::<true>(step, wide) }
        } else {
            // SAFETY: as above.
            unsafe { widen_step::<false>(step, wide) }
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
                let exponents = step.as_ptr().add(CODES).cast::<u8>();
                let of_group = powers::<USUAL>(exponents.add(group * PANEL + column));
                for run in group * RUNS..(group + 1) * RUNS {
                    let from = step.as_ptr().add(run * PANEL + column);
                    let mut codes = _mm512_loadu_si512(from.cast());
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
    const { assert!(P == 1, "panels come one by one") };
    // SAFETY: the caller's promise; compiled for AVX-512 with bf16.
    unsafe { tile::<M, H>(work) }
}

static ROUNDED: Tiles = tiles!(
    SplitPairs, mxfp4_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 6 7 8 9 10 11 12 : 1 1 1 1 1 1 1 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2],
    TILES_BF16
);

pub(super) static KERNELS: Kernels = Kernels {
    tiles: [&EXACT_ONE_BY_ONE, &ROUNDED],
    widen: widen_exact,
    widen_rounded: Some(widen),
};
