//! AVX-512: a row is four registers, and 16 rows are folded at once.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _CMP_NLT_UQ, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_fmadd_ps,
    _mm512_fmsub_ps, _mm512_loadu_ps, _mm512_mask_cmp_ps_mask, _mm512_mask_max_ps,
    _mm512_maskz_mul_ps, _mm512_maskz_scalef_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_ps,
    _mm512_set1_ps, _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_sub_ps,
};

use super::{POWERS, SLACK, raise};
use crate::attention::cells::BLOCK;
use crate::attention::softmax::{LANES, Rows};
use crate::attention::visible::Visible;
use crate::exp::LOWEST_POWER;
use crate::gemm::BLOCK_STEPS;

/// Vectors of a block.
const PARTS: usize = BLOCK / LANES;

type Lanes = [f32; LANES];

/// Masks of the visible positions, one per vector.
#[inline(always)]
fn masks(visible: Visible) -> [u16; PARTS] {
    let all = visible.bits();
    std::array::from_fn(|part| (all >> (part * LANES)) as u16)
}

/// One vector of a block's values.
#[inline(always)]
unsafe fn load(values: &[f32; BLOCK], part: usize) -> __m512 {
    // SAFETY: the part lies in the block; the caller runs AVX-512.
    unsafe { _mm512_loadu_ps(values.as_ptr().add(part * LANES)) }
}

/// The sum, or the larger value, in each lane.
#[inline(always)]
unsafe fn combine<const SUM: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        if SUM {
            _mm512_add_ps(a, b)
        } else {
            _mm512_max_ps(a, b)
        }
    }
}

/// Folds two rows of 16 lanes into one vector, eight lanes each.
#[inline(always)]
unsafe fn eights<const SUM: bool>(a: &Lanes, b: &Lanes) -> __m512 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let (a, b) = (_mm512_loadu_ps(a.as_ptr()), _mm512_loadu_ps(b.as_ptr()));
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        combine::<SUM>(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    }
}

/// Folds rows `first`, `first + 4`, … into one vector, four lanes each.
#[inline(always)]
unsafe fn fours<const SUM: bool>(rows: &[Lanes; LANES], first: usize) -> __m512 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let a = eights::<SUM>(&rows[first], &rows[first + 4]);
        let b = eights::<SUM>(&rows[first + 8], &rows[first + 12]);
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        combine::<SUM>(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
    }
}

/// Folds the rows of [`fours`] and the row behind each into one vector, two lanes each.
#[inline(always)]
unsafe fn twos<const SUM: bool>(rows: &[Lanes; LANES], first: usize) -> __m512 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let (a, b) = (fours::<SUM>(rows, first), fours::<SUM>(rows, first + 1));
        let low = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
        combine::<SUM>(low, _mm512_shuffle_ps::<0b11_10_11_10>(a, b))
    }
}

/// Folds the lanes of 16 rows, each in the order of [`super::fold`].
#[inline(always)]
unsafe fn fold_rows<const SUM: bool>(rows: &[Lanes; LANES]) -> Lanes {
    let mut out = [0.0; LANES];
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let (a, b) = (twos::<SUM>(rows, 0), twos::<SUM>(rows, 2));
        let low = _mm512_shuffle_ps::<0b10_00_10_00>(a, b);
        let folded = combine::<SUM>(low, _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
        _mm512_storeu_ps(out.as_mut_ptr(), folded);
    }
    out
}

/// `2ˣ` where `mask` has a bit.
#[inline(always)]
unsafe fn powers(x: __m512, mask: u16) -> __m512 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let mask = _mm512_mask_cmp_ps_mask::<_CMP_NLT_UQ>(mask, x, _mm512_set1_ps(LOWEST_POWER));
        // The rest that rounding to the nearest integer leaves.
        let r = _mm512_reduce_ps::<8>(x);
        let mut p = _mm512_set1_ps(POWERS[0]);
        for &coefficient in &POWERS[1..] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
        }
        _mm512_maskz_scalef_ps(mask, p, _mm512_sub_ps(x, r))
    }
}

/// The largest scaled score in each lane; scores that are not numbers don't count.
#[inline(always)]
unsafe fn largest(
    scores: &[f32; BLOCK],
    factors: Option<&[f32; BLOCK]>,
    visible: Visible,
) -> __m512 {
    // SAFETY: rows and factors have a block's length; the caller runs AVX-512.
    unsafe {
        let mut max = _mm512_set1_ps(f32::NEG_INFINITY);
        let masks = masks(visible);
        for (part, mask) in masks.into_iter().enumerate() {
            let mut score = load(scores, part);
            if let Some(factors) = factors {
                score = _mm512_mul_ps(score, load(factors, part));
            }
            max = match visible {
                Visible::ALL => _mm512_max_ps(score, max),
                _ => _mm512_mask_max_ps(max, mask, score, max),
            };
        }
        max
    }
}

/// See [`super::softmax_blocks`].
///
/// # Safety
/// The machine runs AVX-512 with bf16. All slices are of as many rows, except `out` and
/// `lanes`, which has 16 for each 16 rows or fewer.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn softmax(
    mut tile: Rows<'_>,
    scales: Option<&[f32; BLOCK]>,
    lanes: &mut [Lanes],
    out: &mut [u32],
    height: usize,
) {
    let rows = tile.scores.len();
    let (groups, _) = lanes.as_chunks_mut::<LANES>();
    for (group, lanes) in groups[..rows.div_ceil(LANES)].iter_mut().enumerate() {
        let first = group * LANES;
        let last = rows.min(first + LANES);
        // SAFETY: compiled for it.
        unsafe {
            raise_maxima(&mut tile, scales.is_some(), first..last, lanes);
            for row in first..last {
                tile.asking.until(row + 1, rows);
                let out = &mut out[row * BLOCK_STEPS..];
                let sums = if tile.visible[row] == Visible::ALL {
                    weigh::<true>(&tile, row, scales, out, height)
                } else {
                    weigh::<false>(&tile, row, scales, out, height)
                };
                _mm512_storeu_ps(lanes[row - first].as_mut_ptr(), sums);
            }
            let sums = fold_rows::<true>(lanes);
            for (state, sum) in tile.states[first..last].iter_mut().zip(sums) {
                state.sum += sum;
            }
        }
    }
}

/// Brings up to 16 rows to this block's maxima, where these lie far above the old ones.
#[inline(always)]
unsafe fn raise_maxima(
    tile: &mut Rows<'_>,
    each: bool,
    rows: std::ops::Range<usize>,
    lanes: &mut [Lanes; LANES],
) {
    let width = tile.acc.len() / tile.scores.len();
    // SAFETY: the caller runs AVX-512.
    let maxima = unsafe {
        for (row, lanes) in rows.clone().zip(&mut *lanes) {
            let factors = each.then_some(tile.scales);
            let max = largest(&tile.scores[row], factors, tile.visible[row]);
            _mm512_storeu_ps(lanes.as_mut_ptr(), max);
        }
        fold_rows::<false>(lanes)
    };
    for (row, mut max) in rows.zip(maxima) {
        if !each {
            max *= tile.scales[0];
        }
        let state = &mut tile.states[row];
        if max > state.max + SLACK {
            raise(state, max, &mut tile.acc[row * width..(row + 1) * width]);
        }
    }
}

/// Leaves the weights of a row in `out`; returns the weights' sum in each lane.
#[inline(always)]
unsafe fn weigh<const WHOLE: bool>(
    tile: &Rows<'_>,
    row: usize,
    scales: Option<&[f32; BLOCK]>,
    out: &mut [u32],
    height: usize,
) -> __m512 {
    let masks = if WHOLE {
        [u16::MAX; PARTS]
    } else {
        masks(tile.visible[row])
    };
    // SAFETY: rows, factors and scales have a block's length; the caller runs
    // AVX-512 with bf16.
    unsafe {
        let max = _mm512_set1_ps(tile.states[row].max);
        let mut weights = [max; PARTS];
        let mut sums = max;
        for part in 0..PARTS {
            let score = load(&tile.scores[row], part);
            let x = _mm512_fmsub_ps(score, load(tile.scales, part), max);
            weights[part] = powers(x, masks[part]);
            sums = match part {
                0 => weights[0],
                _ => _mm512_add_ps(sums, weights[part]),
            };
            if let Some(scales) = scales {
                // Positions that the row does not see may have scales that are not finite.
                weights[part] = _mm512_maskz_mul_ps(masks[part], weights[part], load(scales, part));
            }
        }
        for half in 0..2 {
            let pairs = _mm512_cvtne2ps_pbh(weights[2 * half + 1], weights[2 * half]);
            let pairs = std::mem::transmute::<__m512bh, __m512i>(pairs);
            let out = &mut out[half * height * BLOCK_STEPS..][..BLOCK_STEPS];
            _mm512_storeu_si512(out.as_mut_ptr().cast(), pairs);
        }
        sums
    }
}
