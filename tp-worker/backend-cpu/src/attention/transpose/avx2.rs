//! 8 rows at once: each 128-bit lane of a register holds four steps of a row.

use std::arch::x86_64::{
    __m256i, _mm256_loadu2_m128i, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use super::{LANES, STEPS};

const WIDTH: usize = 8;

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
        let row = |lane: usize| rows[first + lane.min(count - 1)];
        // Row `r` becomes lane `r` when half `h` of register `k` is row `4h + k`.
        let load = |k: usize, step: usize| -> __m256i {
            // SAFETY: rows are readable for `steps` elements.
            unsafe { _mm256_loadu2_m128i(row(4 + k).add(step).cast(), row(k).add(step).cast()) }
        };
        for step in (0..steps).step_by(STEPS) {
            let (a, b, c, d) = (load(0, step), load(1, step), load(2, step), load(3, step));
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ef, gh) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            let columns = [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ef, gh),
                _mm256_unpackhi_epi64(ef, gh),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                // SAFETY: `out` is writable for `lanes` elements of every step.
                unsafe { store(out.add((step + i) * stride + first), column, count) };
            }
        }
    }
}

/// The first `count` of a register's elements.
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
