//! 8 rows at once: each 128-bit lane of a register holds four steps of a row.

use std::arch::x86_64::{
    __m128i, __m256i, _mm256_loadu2_m128i, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use super::{LANES, STEPS};

const WIDTH: usize = 8;

/// Four steps of 8 rows from `step` on, one register per step.
///
/// # Safety
/// Inlined in a function compiled for AVX2; 8 rows are readable there.
#[inline(always)]
pub(in crate::attention) unsafe fn quarter(rows: &[*const u32], step: usize) -> [__m256i; STEPS] {
    // SAFETY: the caller's promise.
    unsafe {
        // Row `r` becomes lane `r` when half `h` of register `k` is row `4h + k`.
        let at = |row: usize| rows[row].wrapping_add(step).cast::<__m128i>();
        let a = _mm256_loadu2_m128i(at(4), at(0));
        let b = _mm256_loadu2_m128i(at(5), at(1));
        let c = _mm256_loadu2_m128i(at(6), at(2));
        let d = _mm256_loadu2_m128i(at(7), at(3));
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ef, gh) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ef, gh),
            _mm256_unpackhi_epi64(ef, gh),
        ]
    }
}

/// Four steps of 16 rows from `step` on, two registers per step.
///
/// # Safety
/// The conditions of [`quarter`], with 16 rows.
#[inline(always)]
pub(in crate::attention) unsafe fn both_quarters(
    rows: &[*const u32; LANES],
    step: usize,
) -> [[__m256i; 2]; STEPS] {
    // SAFETY: the caller's promise.
    unsafe {
        let low = quarter(&rows[..WIDTH], step);
        let high = quarter(&rows[WIDTH..], step);
        [
            [low[0], high[0]],
            [low[1], high[1]],
            [low[2], high[2]],
            [low[3], high[3]],
        ]
    }
}

/// See [`super::transpose`]; `steps` is a multiple of 4.
///
/// # Safety
/// The machine runs AVX2; rows and `out` as said there.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn transpose(
    rows: &[*const u32; LANES],
    lanes: usize,
    steps: usize,
    out: *mut u32,
    stride: usize,
) {
    for first in (0..lanes).step_by(WIDTH) {
        let count = WIDTH.min(lanes - first);
        // Lanes without a row repeat the last; they are not stored.
        let rows: [*const u32; WIDTH] =
            std::array::from_fn(|lane| rows[first + lane.min(count - 1)]);
        for step in (0..steps).step_by(STEPS) {
            // SAFETY: rows are readable for `steps` elements.
            let columns = unsafe { quarter(&rows, step) };
            for (i, column) in columns.into_iter().enumerate() {
                // SAFETY: `out` is writable for `lanes` elements of every step.
                unsafe { store(out.add((step + i) * stride + first), column, count) };
            }
        }
    }
}

/// Stores the first `count` of a register's elements.
#[inline(always)]
unsafe fn store(to: *mut u32, column: __m256i, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == WIDTH {
            _mm256_storeu_si256(to.cast(), column);
        } else {
            let mut values = [0u32; WIDTH];
            _mm256_storeu_si256(values.as_mut_ptr().cast(), column);
            to.copy_from_nonoverlapping(values.as_ptr(), count);
        }
    }
}
