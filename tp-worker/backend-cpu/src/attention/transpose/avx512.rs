//! 16 rows at once: each 128-bit lane of a register holds four steps of a row.

use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_castsi128_si512, _mm512_inserti32x4, _mm512_mask_storeu_epi32,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::{LANES, STEPS};

/// Four steps of 16 rows from `step` on, one register per step.
///
/// # Safety
/// Inlined in a function compiled for AVX-512; rows are readable there.
#[inline(always)]
pub(in crate::attention) unsafe fn quarter(
    rows: &[*const u32; LANES],
    step: usize,
) -> [__m512i; STEPS] {
    // SAFETY: the caller's promise.
    unsafe {
        // Row `r` becomes lane `r` when quarter `q` of register `k` is row `4q + k`.
        let load = |k: usize| -> __m512i {
            let part = |q: usize| _mm_loadu_si128(rows[4 * q + k].add(step).cast());
            let x = _mm512_castsi128_si512(part(0));
            let x = _mm512_inserti32x4::<1>(x, part(1));
            let x = _mm512_inserti32x4::<2>(x, part(2));
            _mm512_inserti32x4::<3>(x, part(3))
        };
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ef, gh) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ef, gh),
            _mm512_unpackhi_epi64(ef, gh),
        ]
    }
}

/// See [`super::transpose`]; `steps` is a multiple of 4.
///
/// # Safety
/// The machine runs AVX-512; rows and `out` as said there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn transpose(
    rows: &[*const u32; LANES],
    lanes: usize,
    steps: usize,
    out: *mut u32,
    stride: usize,
) {
    let mut rows = *rows;
    let first = rows[0];
    // Lanes without a row repeat the first; they are not stored.
    rows[lanes..].fill(first);
    let mask = (u32::MAX >> (32 - lanes)) as u16;
    for step in (0..steps).step_by(STEPS) {
        // SAFETY: rows are readable for `steps` elements.
        let columns = unsafe { quarter(&rows, step) };
        for (i, column) in columns.into_iter().enumerate() {
            // SAFETY: `out` is writable for `lanes` elements of every step.
            unsafe {
                _mm512_mask_storeu_epi32(out.add((step + i) * stride).cast(), mask, column);
            }
        }
    }
}
