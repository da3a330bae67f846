//! Rows of 4-byte steps as columns.
//!
//! Keys lie in the cache row by row, but scores are computed for 16 positions at once, one
//! to a lane. Weights come row by row and are broadcast step by step. Both are turned around
//! in registers: blocks of four steps are gathered a quarter register per row and
//! interleaved twice.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

use crate::isa::Isa;

/// The most rows turned around at once.
pub(crate) const LANES: usize = 16;
/// Steps turned around at once.
const STEPS: usize = 4;

/// The addresses of 16 keys or fewer. Lanes past the last key repeat the first, and their
/// scores are not seen.
#[inline(always)]
pub(super) fn keys_at(rows: &[usize], row: impl Fn(usize) -> *const u8) -> [*const u32; LANES] {
    let mut from = [row(rows[0]).cast(); LANES];
    for (from, &index) in from.iter_mut().zip(rows) {
        *from = row(index).cast();
    }
    from
}

/// `out[s · stride + lane] = rows[lane][s]` for `lanes` rows of `steps` steps.
///
/// # Safety
/// This machine runs `isa`; `1 ≤ lanes ≤ 16`; each of the first `lanes` rows is
/// readable for `steps` elements, and `out` is writable for all it gets.
#[inline(always)]
pub(crate) unsafe fn transpose(
    isa: Isa,
    rows: &[*const u32; LANES],
    lanes: usize,
    steps: usize,
    out: *mut u32,
    stride: usize,
) {
    let whole = steps / STEPS * STEPS;
    // SAFETY: the caller's promise; `whole` is a multiple of four steps.
    unsafe {
        match isa.vectors() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => avx512::transpose(rows, lanes, whole, out, stride),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::transpose(rows, lanes, whole, out, stride),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::transpose(rows, lanes, whole, out, stride),
            _ => scalar(rows, lanes, 0..whole, out, stride),
        }
        if whole < steps {
            scalar(rows, lanes, whole..steps, out, stride);
        }
    }
}

/// Turns rows around in plain Rust; also the last steps for the other instruction sets.
unsafe fn scalar(
    rows: &[*const u32; LANES],
    lanes: usize,
    steps: std::ops::Range<usize>,
    out: *mut u32,
    stride: usize,
) {
    for (lane, row) in rows.iter().enumerate().take(lanes) {
        for step in steps.clone() {
            // SAFETY: the caller's promise.
            unsafe { *out.add(step * stride + lane) = *row.add(step) };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_instruction_set_turns_rows_into_columns_and_touches_nothing_else(
            lanes in 1usize..=LANES,
            steps in 0usize..40,
            spare in 0usize..20,
        ) {
            let data: Vec<Vec<u32>> = (0..lanes)
                .map(|lane| (0..steps).map(|step| (lane * 1_000 + step) as u32).collect())
                .collect();
            let stride = lanes + spare;
            let mut expected = vec![u32::MAX; steps * stride];
            for (lane, row) in data.iter().enumerate() {
                for (step, value) in row.iter().enumerate() {
                    expected[step * stride + lane] = *value;
                }
            }
            let rows = std::array::from_fn(|lane| data[lane.min(lanes - 1)].as_ptr());
            for isa in Isa::available() {
                let mut out = vec![u32::MAX; steps * stride];
                // SAFETY: an available instruction set; rows and output are as long as said.
                unsafe { transpose(isa, &rows, lanes, steps, out.as_mut_ptr(), stride) };
                prop_assert_eq!(&out, &expected, "{}", isa);
            }
        }
    }
}
