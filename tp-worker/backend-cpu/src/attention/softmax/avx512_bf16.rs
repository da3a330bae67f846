//! The softmax for kernels with weights in pairs of bf16 or in 16-bit integers. Fused
//! multiply-adds and masks make it half as long, and weights leave it in the form that
//! kernels read.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _CMP_NLT_UQ, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehdup_ps,
    _mm_movehl_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_extractf128_ps, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_castsi512_si256, _mm512_cvtne2ps_pbh, _mm512_cvtps_epi32,
    _mm512_extracti64x4_epi64, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_cmp_ps_mask,
    _mm512_mask_max_ps, _mm512_maskz_mul_ps, _mm512_max_epu32, _mm512_min_ps, _mm512_mul_ps,
    _mm512_packus_epi16, _mm512_packus_epi32, _mm512_permutexvar_epi32, _mm512_reduce_max_epu32,
    _mm512_reduce_max_ps, _mm512_set_epi32, _mm512_set1_epi16, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_sub_ps,
};

use super::whole::{LARGEST, ROUND, powers_around};
use super::{Bytes, LANES, Rows, State};
use crate::attention::cells::BLOCK;
use crate::attention::visible::Visible;
use crate::exp::{LOWEST_POWER, POWERS, exp2_nonpositive};

/// Vectors of a block.
const PARTS: usize = BLOCK / LANES;

/// Masks of the visible positions, one per vector.
#[inline(always)]
fn masks(visible: Visible) -> [u16; PARTS] {
    let all = visible.bits();
    std::array::from_fn(|part| (all >> (part * LANES)) as u16)
}

/// The sum of all lanes, always in this one order.
#[inline(always)]
unsafe fn total(lanes: __m512) -> f32 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let bits = _mm512_castps_si512(lanes);
        let low = _mm256_castsi256_ps(_mm512_castsi512_si256(bits));
        let high = _mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(bits));
        let eight = _mm256_add_ps(low, high);
        let four = _mm_add_ps(
            _mm256_castps256_ps128(eight),
            _mm256_extractf128_ps::<1>(eight),
        );
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

impl Rows<'_> {
    /// Scaled scores of one vector.
    #[inline(always)]
    unsafe fn scaled(&self, row: usize, part: usize) -> __m512 {
        // SAFETY: rows and scales have a block's length; the caller runs AVX-512.
        unsafe {
            let scores = _mm512_loadu_ps(self.scores[row].as_ptr().add(part * LANES));
            _mm512_mul_ps(
                scores,
                _mm512_loadu_ps(self.scales.as_ptr().add(part * LANES)),
            )
        }
    }

    /// Raises the rows' maxima to the maxima of this block.
    #[inline(always)]
    unsafe fn raise_maxima(&mut self) {
        let rows = self.scores.len();
        let width = self.acc.len() / rows;
        for row in 0..rows {
            let masks = masks(self.visible[row]);
            // SAFETY: the caller runs AVX-512.
            let max = unsafe {
                let mut max = _mm512_set1_ps(f32::NEG_INFINITY);
                for (part, &mask) in masks.iter().enumerate() {
                    // A score that is not a number leaves the maximum as it is.
                    max = _mm512_mask_max_ps(max, mask, self.scaled(row, part), max);
                }
                _mm512_reduce_max_ps(max)
            };
            let state = &mut self.states[row];
            if max > state.max {
                let rescale = exp2_nonpositive(state.max - max);
                *state = State {
                    max,
                    sum: state.sum * rescale,
                };
                let acc = &mut self.acc[row * width..(row + 1) * width];
                acc.iter_mut().for_each(|value| *value *= rescale);
            }
        }
    }

    /// The weights of a row times `scales`, zero where the row sees nothing. Adds the
    /// weights to the row's sum before `scales`.
    #[inline(always)]
    unsafe fn weights(
        &mut self,
        row: usize,
        masks: [u16; PARTS],
        scales: Option<&[f32; BLOCK]>,
    ) -> [__m512; PARTS] {
        // SAFETY: the caller runs AVX-512.
        unsafe {
            let max = _mm512_set1_ps(self.states[row].max);
            let mut sums = _mm512_setzero_ps();
            let mut weights = [sums; PARTS];
            let rows = self.scores.len();
            for part in 0..PARTS {
                self.asking.until(row * PARTS + part + 1, rows * PARTS);
                let x = _mm512_sub_ps(self.scaled(row, part), max);
                weights[part] = powers(x, masks[part]);
                sums = _mm512_add_ps(sums, weights[part]);
                if let Some(scales) = scales {
                    let scales = _mm512_loadu_ps(scales.as_ptr().add(part * LANES));
                    // Positions that the row does not see may have scales that are not
                    // finite.
                    weights[part] = _mm512_maskz_mul_ps(masks[part], weights[part], scales);
                }
            }
            self.states[row].sum += total(sums);
            weights
        }
    }
}

/// `2ˣ` for `x ≤ 0` where `mask` has a bit: zero below `LOWEST_POWER`, NaN for NaN.
#[inline(always)]
unsafe fn powers(x: __m512, mask: u16) -> __m512 {
    // SAFETY: the caller runs AVX-512.
    unsafe {
        let mask = _mm512_mask_cmp_ps_mask::<_CMP_NLT_UQ>(mask, x, _mm512_set1_ps(LOWEST_POWER));
        let round = _mm512_set1_ps(ROUND);
        let shifted = _mm512_add_ps(x, round);
        let r = _mm512_sub_ps(x, _mm512_sub_ps(shifted, round));
        let mut p = _mm512_set1_ps(POWERS[0]);
        for &coefficient in &POWERS[1..] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
        }
        let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
        _mm512_maskz_mul_ps(mask, p, _mm512_castsi512_ps(power))
    }
}

/// Turns raw scores into weights times `scales`, as pairs of bf16.
///
/// # Safety
/// The machine runs AVX-512 with bf16; all slices are of as many rows.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn pairs(
    mut rows: Rows<'_>,
    scales: Option<&[f32; BLOCK]>,
    out: &mut [[u32; BLOCK]],
) {
    // SAFETY: compiled for it; a row of weights takes two vectors of pairs.
    unsafe {
        rows.raise_maxima();
        for (row, out) in out.iter_mut().enumerate() {
            let weights = rows.weights(row, masks(rows.visible[row]), scales);
            for half in 0..2 {
                let pairs = _mm512_cvtne2ps_pbh(weights[2 * half + 1], weights[2 * half]);
                let pairs = std::mem::transmute::<__m512bh, __m512i>(pairs);
                _mm512_storeu_si512(out.as_mut_ptr().add(half * LANES).cast(), pairs);
            }
        }
    }
}

/// Turns raw scores into weights times `scales`, as 16-bit integers, and writes the value of
/// the integer 1 in each row. The largest integer of a row is at least 2¹⁴, unless the
/// weight is below 2⁻¹¹². A weight is exact within 2⁻¹⁵ of the row's largest. Where a row
/// sees numbers that are not finite, its integer 1 is worth NaN.
///
/// # Safety
/// The conditions of [`pairs`].
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(in crate::attention) unsafe fn integers(
    mut rows: Rows<'_>,
    scales: &[f32; BLOCK],
    out: &mut [Bytes],
    worth: &mut [f32],
) {
    // SAFETY: compiled for it; rows of bytes have a block's length.
    unsafe {
        rows.raise_maxima();
        for (row, (out, worth)) in out.iter_mut().zip(worth).enumerate() {
            let weights = rows.weights(row, masks(rows.visible[row]), Some(scales));
            // No weight is negative, and such numbers are ordered like their bits.
            let mut largest = _mm512_setzero_si512();
            for weights in weights {
                largest = _mm512_max_epu32(largest, _mm512_castps_si512(weights));
            }
            let exponent = _mm512_reduce_max_epu32(largest) >> 23;
            let (up, down) = powers_around(exponent);
            *worth = down;
            let up = _mm512_set1_ps(up);
            let largest = _mm512_set1_ps(LARGEST);
            let words = weights.map(|weights| {
                // A weight that is not a number becomes the largest integer.
                let scaled = _mm512_min_ps(_mm512_mul_ps(weights, up), largest);
                _mm512_cvtps_epi32(scaled)
            });
            store_bytes(words, out);
        }
    }
}

/// Takes 16-bit words apart.
#[inline(always)]
unsafe fn store_bytes(words: [__m512i; PARTS], out: &mut Bytes) {
    // SAFETY: the caller runs AVX-512; each half of `out` is a vector.
    unsafe {
        // Packing works on quarters of registers. Its result has quarters of four words in
        // the order of quarters, not in the order of words.
        let order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        let front = _mm512_packus_epi32(words[0], words[1]);
        let back = _mm512_packus_epi32(words[2], words[3]);
        let low = _mm512_set1_epi16(0xff);
        let upper =
            _mm512_packus_epi16(_mm512_srli_epi16::<8>(front), _mm512_srli_epi16::<8>(back));
        let lower = _mm512_packus_epi16(_mm512_and_si512(front, low), _mm512_and_si512(back, low));
        for (part, bytes) in out.iter_mut().zip([upper, lower]) {
            let bytes = _mm512_permutexvar_epi32(order, bytes);
            _mm512_storeu_si512(part.as_mut_ptr().cast(), bytes);
        }
    }
}
