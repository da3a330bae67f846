//! Values of two positions woven into pairs.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_unpackhi_epi16,
    _mm512_unpacklo_epi16,
};

use super::{Asking, BLOCK, CpuKvCache};
use crate::attention::cells::is_run;
use crate::attention::transpose::LANES;
use crate::gemm::{BLOCK_STEPS, PANEL};

/// Number of consecutive rows that are woven at once.
const RUN: usize = 16;
/// Words of a panel of a block's values.
const PANEL_LEN: usize = BLOCK / 2 * PANEL;

/// See [`super::WeaveFn`]: `[head columns / 32][32 pairs of positions][32 columns]`,
/// columns in the order of `Order::Fours`.
///
/// # Safety
/// The conditions of [`super::WeaveFn`]; the machine runs AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn weave(
    cache: &CpuKvCache,
    rows: &[usize],
    out: *mut u32,
    mut asking: Asking<'_>,
) {
    let (data, bytes) = cache.bytes();
    let data = data.wrapping_add(cache.values_after() * bytes);
    let (panels, pairs) = (bytes / (2 * PANEL), rows.len().div_ceil(2));
    for (run, rows) in rows.chunks(RUN).enumerate() {
        let first = run * RUN / 2;
        let after = first + rows.len().div_ceil(2);
        asking.until(after, pairs);
        let together = rows.len() == RUN && is_run(rows);
        let start = data.wrapping_add(rows[0] * bytes);
        // SAFETY: rows lie in the cache and hold whole panels; `out` holds a block.
        unsafe {
            let out = out.add(first * PANEL);
            match panels {
                2 if together => weave_run(start, 2, out),
                4 if together => weave_run(start, 4, out),
                _ => weave_rows(data, rows, panels, out),
            }
        }
    }
    for pair in pairs..pairs.next_multiple_of(BLOCK_STEPS) {
        for panel in 0..panels {
            let zero = _mm512_setzero_si512();
            // SAFETY: `out` holds a block.
            unsafe { store(out.add(panel * PANEL_LEN + pair * PANEL), zero, zero) };
        }
    }
}

/// Weaves 16 rows that follow each other. With a constant number of panels the compiler
/// leaves no loop.
#[inline(always)]
unsafe fn weave_run(start: *const u8, panels: usize, out: *mut u32) {
    let bytes = panels * 2 * PANEL;
    for pair in 0..RUN / 2 {
        let first = start.wrapping_add(2 * pair * bytes);
        // SAFETY: forwarded to the caller.
        unsafe {
            let to = out.add(pair * PANEL);
            weave_pair(first, Some(first.wrapping_add(bytes)), panels, to);
        }
    }
}

/// Weaves up to 16 rows; an odd last row is paired with zeros.
#[inline(always)]
unsafe fn weave_rows(data: *const u8, rows: &[usize], panels: usize, out: *mut u32) {
    let bytes = panels * 2 * PANEL;
    for (pair, rows) in rows.chunks(2).enumerate() {
        let first = data.wrapping_add(rows[0] * bytes);
        let second = rows.get(1).map(|row| data.wrapping_add(row * bytes));
        // SAFETY: forwarded to the caller.
        unsafe { weave_pair(first, second, panels, out.add(pair * PANEL)) };
    }
}

/// Weaves two rows.
#[inline(always)]
unsafe fn weave_pair(first: *const u8, second: Option<*const u8>, panels: usize, out: *mut u32) {
    for panel in 0..panels {
        let column = panel * 2 * PANEL;
        // SAFETY: the caller's promise: rows hold these columns, `out` a block.
        unsafe {
            let low = _mm512_loadu_si512(first.add(column).cast());
            let high = match second {
                Some(second) => _mm512_loadu_si512(second.add(column).cast()),
                None => _mm512_setzero_si512(),
            };
            store(out.add(panel * PANEL_LEN), low, high);
        }
    }
}

/// Stores columns of two positions as pairs.
#[inline(always)]
unsafe fn store(to: *mut u32, low: __m512i, high: __m512i) {
    // SAFETY: the caller runs AVX-512; `to` holds 32 words.
    unsafe {
        _mm512_storeu_si512(to.cast(), _mm512_unpacklo_epi16(low, high));
        _mm512_storeu_si512(to.add(LANES).cast(), _mm512_unpackhi_epi16(low, high));
    }
}
