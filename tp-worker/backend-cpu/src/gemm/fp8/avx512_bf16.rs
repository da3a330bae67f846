//! Tiles of 8-bit floats on `vdpbf16ps`, for inputs that are rounded to bf16.
//!
//! Codes are exact in bf16. The inputs that share a factor are one chain of pairs, in the order of
//! [`Input::SplitPairs`](crate::gemm::Input): a pair has an input of each of two runs. The chain's
//! sum is multiplied by the factor as it is added to the total, which rounds once. So a row's
//! result depends neither on its neighbours nor on how steps are cut into calls.

#![expect(
    clippy::needless_range_loop,
    reason = "loops of constant length over registers, named by row and half"
)]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_and_si512, _mm512_castps_si512, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_srli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512,
};

use super::avx512::{ONE_BY_ONE, values};
use super::{Kernels, NEAR_STREAM, Pairs, RUN, RUNS};
use crate::gemm::prefetch::STREAMS;
use crate::gemm::tile::{LANES, PANEL, Tile};
use crate::gemm::tiles::{Tiles, tiles};
use crate::prefetch;

/// Pairs of two runs.
const PAIRS: usize = RUN;

/// Columns of two runs, as codes or widened.
trait Columns {
    /// Words of a panel that hold two runs.
    const WORDS: usize;

    /// Returns a pair of each of 16 columns.
    ///
    /// # Safety
    /// Compiled for AVX-512; the panel's two runs are readable from the columns' first word on.
    unsafe fn pair(from: *const u32, pair: usize) -> __m512i;
}

/// Codes, as [`super::place`] lays them out.
struct Codes;

/// Pairs of bf16, `[pairs][32 columns]`.
struct Widened;

impl Columns for Codes {
    const WORDS: usize = 2 * PANEL;

    #[inline(always)]
    unsafe fn pair(from: *const u32, pair: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = from.cast::<u8>().wrapping_add(pair * LANES);
            let low = _mm512_castps_si512(values(codes));
            let high = _mm512_castps_si512(values(codes.wrapping_add(4 * PANEL)));
            // Both have no more bits of mantissa than bf16.
            let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm512_or_si512(_mm512_srli_epi32::<16>(low), _mm512_and_si512(high, upper))
        }
    }
}

impl Columns for Widened {
    const WORDS: usize = PAIRS * PANEL;

    #[inline(always)]
    unsafe fn pair(from: *const u32, pair: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.wrapping_add(pair * PANEL).cast()) }
    }
}

#[inline(always)]
fn bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of plain data.
    unsafe { std::mem::transmute(bits) }
}

/// `M` rows times `P` panels, `H` halves of a panel at a time.
///
/// # Safety
/// Compiled for AVX-512 with bf16; `work`'s pointers are valid for the shape it describes.
#[inline(always)]
unsafe fn tile<C: Columns, const M: usize, const P: usize, const H: usize>(work: &Tile) {
    for half in (0..2).step_by(H) {
        // SAFETY: forwarded to the caller.
        unsafe { halves::<C, M, P, H>(work, half * LANES) };
    }
}

/// Computes the columns from `column` on, `16 · H` of each panel.
#[inline(always)]
unsafe fn halves<C: Columns, const M: usize, const P: usize, const H: usize>(
    work: &Tile,
    column: usize,
) {
    // SAFETY: forwarded to the caller; offsets stay within the described shape, and prefetching
    // past the end touches nothing.
    unsafe {
        let mut totals = [[[_mm512_setzero_ps(); H]; M]; P];
        let c = work.c.add(column);
        let at = |p: usize, r: usize, h: usize| c.add(r * work.ldc + p * PANEL + h * LANES);
        if work.resume {
            for p in 0..P {
                for r in 0..M {
                    for h in 0..H {
                        totals[p][r][h] = _mm512_loadu_ps(at(p, r, h));
                    }
                }
            }
        }
        let (mut a, mut b) = (work.a, work.b.wrapping_add(column));
        let mut asking = work.ahead.asking();
        let near = if P == 1 { asking.near } else { NEAR_STREAM };
        let mut turn = 0;
        for _ in 0..work.steps * work.scales {
            let mut sums = [[[_mm512_setzero_ps(); H]; M]; P];
            for _ in 0..RUNS / 2 / work.scales {
                if P == 1 {
                    for _ in 0..C::WORDS / PANEL {
                        asking.ask(turn);
                        turn = (turn + 1) % STREAMS;
                        if turn == 0 {
                            asking.next();
                        }
                    }
                }
                let near = b.wrapping_add(near);
                runs::<C, M, P, H>(&mut sums, a, b, near, work.panel_stride);
                a = a.add(PAIRS * M);
                b = b.wrapping_add(C::WORDS);
            }
            for p in 0..P {
                for h in 0..H {
                    let factors = b.wrapping_add(p * work.panel_stride + h * LANES);
                    let factors = _mm512_loadu_ps(factors.cast());
                    for r in 0..M {
                        let total = totals[p][r][h];
                        totals[p][r][h] = _mm512_fmadd_ps(sums[p][r][h], factors, total);
                    }
                }
            }
            b = b.wrapping_add(PANEL);
        }
        for p in 0..P {
            for r in 0..M {
                for h in 0..H {
                    _mm512_storeu_ps(at(p, r, h), totals[p][r][h]);
                }
            }
        }
    }
}

/// Adds two runs of `M` rows and `P` panels; asks for the words of the same panels at `near`.
#[inline(always)]
unsafe fn runs<C: Columns, const M: usize, const P: usize, const H: usize>(
    sums: &mut [[[__m512; H]; M]; P],
    a: *const u32,
    b: *const u32,
    near: *const u32,
    panel_stride: usize,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        for p in 0..P {
            for word in (0..C::WORDS).step_by(PANEL) {
                for h in 0..H {
                    prefetch::near(near.wrapping_add(p * panel_stride + word + h * LANES));
                }
            }
            let panel = b.wrapping_add(p * panel_stride);
            for pair in 0..PAIRS {
                let mut columns = [_mm512_setzero_si512(); H];
                for h in 0..H {
                    columns[h] = C::pair(panel.wrapping_add(h * LANES), pair);
                }
                for r in 0..M {
                    let row = bf16(_mm512_set1_epi32(*a.add(pair * M + r).cast::<i32>()));
                    for h in 0..H {
                        let sum = sums[p][r][h];
                        sums[p][r][h] = _mm512_dpbf16_ps(sum, row, bf16(columns[h]));
                    }
                }
            }
        }
    }
}

/// Widens the codes of steps with `scales` factors of each column to pairs of bf16. Factors stay.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn widen(scales: usize, narrow: &[u32], wide: &mut [u32]) {
    let twice = RUNS / 2 / scales;
    let (codes, pairs) = (twice * Codes::WORDS, twice * Widened::WORDS);
    let parts = narrow.chunks_exact(codes + PANEL);
    for (part, wide) in parts.zip(wide.chunks_exact_mut(pairs + PANEL)) {
        for number in 0..twice * PAIRS {
            for column in [0, LANES] {
                // SAFETY: compiled for these instructions; all places lie inside of the part and
                // of its room.
                unsafe {
                    let from = part.as_ptr().add(number / PAIRS * Codes::WORDS + column);
                    let to = wide.as_mut_ptr().add(number * PANEL + column);
                    _mm512_storeu_si512(to.cast(), Codes::pair(from, number % PAIRS));
                }
            }
        }
        wide[pairs..].copy_from_slice(&part[codes..]);
    }
}

#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn fp8_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX-512 with bf16.
    unsafe { tile::<Codes, M, P, H>(work) }
}

#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn wide_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe { tile::<Widened, M, P, H>(work) }
}

static WIDE: Tiles = tiles!(
    SplitPairs, wide_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 : 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2]
);

static ROUNDED: Tiles = tiles!(
    SplitPairs, fp8_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12],
    [1 2 3 4 5 : 1 1 1 1 1],
    [2 2 2 2 2 2 2 2 2 2 2 2],
    WIDE
);

pub(super) static KERNELS: Kernels = Kernels {
    pairs: Some(Pairs {
        tiles: &ROUNDED,
        widen,
    }),
    ..ONE_BY_ONE
};
