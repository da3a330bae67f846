//! Products of tiles: queries times keys, and weights times values.

use std::arch::asm;

use super::{BLOCK, Height, ROWS};
use crate::amx::{shape, shape_few};
use crate::gemm::{BLOCK_STEPS, PANEL};

/// Bytes from row to row of a block of inputs.
const ROW: usize = BLOCK_STEPS * 4;
/// Bytes from step to step of a panel.
const STEP: usize = PANEL * 4;
/// Words of a block of a panel.
const PANEL_BLOCK: usize = BLOCK_STEPS * PANEL;
/// Columns of a tile.
const COLUMNS: usize = 16;
/// Blocks of a block of positions.
const HALVES: usize = BLOCK / (2 * BLOCK_STEPS);

/// Gives tiles the shapes for a height; returns the height's rows. All whole heights have
/// the same shapes, so no tile of a task changes them.
#[inline(always)]
unsafe fn prepare(height: Height) -> usize {
    // SAFETY: the caller's promise: the process may use AMX.
    unsafe {
        shape(match height {
            Height::Padded(_) => 2 * ROWS,
            Height::Exact(rows) => rows,
        });
    }
    height.padded()
}

/// Operands and result of one product: `blocks` blocks of one panel.
struct Work {
    inputs: *const u32,
    panel: *const u32,
    blocks: usize,
    out: *mut f32,
    /// Bytes from row to row of `out`.
    stride: usize,
    /// True if the product is added to the content of `out`.
    resume: bool,
}

/// See [`super::ScoresFn`].
///
/// # Safety
/// The conditions of [`super::ScoresFn`]; the process may use AMX.
pub(super) unsafe fn scores(
    queries: *const u32,
    keys: *const u32,
    blocks: usize,
    count: usize,
    height: Height,
    scores: *mut [f32; BLOCK],
) {
    // SAFETY: forwarded to the caller.
    let rows = unsafe { prepare(height) };
    for panel in 0..count.div_ceil(PANEL) {
        // SAFETY: panels of keys follow each other; scores hold two of them.
        unsafe {
            let work = Work {
                inputs: queries,
                panel: keys.add(panel * blocks * PANEL_BLOCK),
                blocks,
                out: scores.cast::<f32>().add(panel * PANEL),
                stride: BLOCK * 4,
                resume: false,
            };
            product(&work, rows);
        }
    }
}

/// See [`super::SumsFn`].
///
/// # Safety
/// The conditions of [`super::SumsFn`]; the process may use AMX.
pub(super) unsafe fn sums(
    weights: *const u32,
    values: *const u32,
    count: usize,
    height: Height,
    acc: *mut f32,
    width: usize,
) {
    // SAFETY: forwarded to the caller.
    let rows = unsafe { prepare(height) };
    for panel in 0..width / PANEL {
        // SAFETY: panels of values follow each other; `acc` has their columns.
        unsafe {
            let work = Work {
                inputs: weights,
                panel: values.add(panel * HALVES * PANEL_BLOCK),
                blocks: count.div_ceil(2 * BLOCK_STEPS),
                out: acc.add(panel * PANEL),
                stride: width * 4,
                resume: true,
            };
            product(&work, rows);
        }
    }
}

/// See [`super::FewSumsFn`].
///
/// # Safety
/// The conditions of [`super::FewSumsFn`]; the process may use AMX.
pub(super) unsafe fn few_sums(
    weights: *const u32,
    values: *const u32,
    count: usize,
    rows: usize,
    acc: *mut f32,
    width: usize,
) {
    // SAFETY: the process may use AMX.
    unsafe { shape_few(rows) };
    for column in (0..width).step_by(COLUMNS) {
        let panel = values.wrapping_add(column / PANEL * HALVES * PANEL_BLOCK + column % PANEL);
        // SAFETY: the caller's promise: tiles have their shapes, and the pointers
        // are valid for the rows and halves of the block.
        unsafe {
            asm!(
                "tileloadd tmm3, [{acc} + {stride}]",
                "2:",
                "tileloadd tmm4, [{weights} + {row}]",
                "tileloadd tmm2, [{values} + {step}]",
                "tdpbf16ps tmm3, tmm4, tmm2",
                "add {weights}, {half}",
                "add {values}, 2048",
                "dec {halves}",
                "jnz 2b",
                "tilestored [{acc} + {stride}], tmm3",
                acc = in(reg) acc.add(column),
                stride = in(reg) width * 4,
                weights = inout(reg) weights => _,
                half = in(reg) rows * ROW,
                values = inout(reg) panel => _,
                halves = inout(reg) count.div_ceil(2 * BLOCK_STEPS) => _,
                row = in(reg) ROW,
                step = in(reg) STEP,
                out("tmm2") _, out("tmm3") _, out("tmm4") _,
                options(nostack),
            );
        }
    }
}

#[inline(always)]
unsafe fn product(work: &Work, rows: usize) {
    // SAFETY: forwarded to the caller.
    unsafe {
        if rows > ROWS {
            high(work, rows);
        } else {
            low(work, rows);
        }
    }
}

/// Multiplies up to 16 rows.
#[inline(always)]
unsafe fn low(work: &Work, rows: usize) {
    // SAFETY: the caller's promise: tiles have their shapes, and the pointers are
    // valid for the rows and blocks.
    unsafe {
        asm!(
            "test {resume:e}, {resume:e}",
            "jnz 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "jmp 2f",
            "3:",
            "tileloadd tmm0, [{out} + {stride}]",
            "tileloadd tmm1, [{out} + {stride} + 64]",
            "2:",
            "tileloadd tmm4, [{a} + {row}]",
            "tileloadd tmm6, [{b} + {step}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {step} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, {block}",
            "add {b}, 2048",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{out} + {stride}], tmm0",
            "tilestored [{out} + {stride} + 64], tmm1",
            resume = in(reg) u32::from(work.resume),
            out = in(reg) work.out,
            stride = in(reg) work.stride,
            a = inout(reg) work.inputs => _,
            b = inout(reg) work.panel => _,
            blocks = inout(reg) work.blocks => _,
            block = in(reg) rows * ROW,
            row = in(reg) ROW,
            step = in(reg) STEP,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies more than 16 rows.
#[inline(always)]
unsafe fn high(work: &Work, rows: usize) {
    // SAFETY: as for `low`.
    unsafe {
        asm!(
            "test {resume:e}, {resume:e}",
            "jnz 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 2f",
            "3:",
            "tileloadd tmm0, [{out} + {stride}]",
            "tileloadd tmm1, [{out} + {stride} + 64]",
            "tileloadd tmm2, [{others} + {stride}]",
            "tileloadd tmm3, [{others} + {stride} + 64]",
            "2:",
            "tileloadd tmm6, [{b} + {step}]",
            "tileloadd tmm4, [{a} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {step} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {row} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, {block}",
            "add {b}, 2048",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{out} + {stride}], tmm0",
            "tilestored [{out} + {stride} + 64], tmm1",
            "tilestored [{others} + {stride}], tmm2",
            "tilestored [{others} + {stride} + 64], tmm3",
            resume = in(reg) u32::from(work.resume),
            out = in(reg) work.out,
            others = in(reg) work.out.wrapping_byte_add(ROWS * work.stride),
            stride = in(reg) work.stride,
            a = inout(reg) work.inputs => _,
            b = inout(reg) work.panel => _,
            blocks = inout(reg) work.blocks => _,
            block = in(reg) rows * ROW,
            row = in(reg) ROW,
            step = in(reg) STEP,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

// All loops step over 2,048 bytes of a panel.
const _: () = assert!(PANEL_BLOCK * 4 == 2_048);
