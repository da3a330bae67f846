//! 4 rows at once, each in a register.

use std::arch::aarch64::{
    uint32x4_t, vld1q_u32, vreinterpretq_u32_u64, vreinterpretq_u64_u32, vst1q_u32, vtrn1q_u32,
    vtrn1q_u64, vtrn2q_u32, vtrn2q_u64,
};

use super::{LANES, STEPS};

const WIDTH: usize = 4;

/// Four steps of 4 rows from `step` on, one register per step.
///
/// # Safety
/// 4 rows are readable there; NEON is part of aarch64.
#[inline(always)]
pub(in crate::attention) unsafe fn quarter(
    rows: &[*const u32],
    step: usize,
) -> [uint32x4_t; STEPS] {
    // SAFETY: the caller's promise.
    unsafe {
        let load = |lane: usize| vld1q_u32(rows[lane].add(step));
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (ab, cd) = (vtrn1q_u32(a, b), vtrn1q_u32(c, d));
        let (ef, gh) = (vtrn2q_u32(a, b), vtrn2q_u32(c, d));
        [low(ab, cd), low(ef, gh), high(ab, cd), high(ef, gh)]
    }
}

/// See [`super::transpose`]; `steps` is a multiple of 4.
///
/// # Safety
/// Rows and `out` as said there; NEON is part of aarch64.
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

/// The lower halves of both.
unsafe fn low(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    // SAFETY: NEON is part of aarch64.
    unsafe {
        vreinterpretq_u32_u64(vtrn1q_u64(
            vreinterpretq_u64_u32(a),
            vreinterpretq_u64_u32(b),
        ))
    }
}

/// The upper halves of both.
unsafe fn high(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    // SAFETY: NEON is part of aarch64.
    unsafe {
        vreinterpretq_u32_u64(vtrn2q_u64(
            vreinterpretq_u64_u32(a),
            vreinterpretq_u64_u32(b),
        ))
    }
}

/// Stores the first `count` of a register's elements.
#[inline(always)]
unsafe fn store(to: *mut u32, column: uint32x4_t, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == WIDTH {
            vst1q_u32(to, column);
        } else {
            let mut values = [0u32; WIDTH];
            vst1q_u32(values.as_mut_ptr(), column);
            to.copy_from_nonoverlapping(values.as_ptr(), count);
        }
    }
}
