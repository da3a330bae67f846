//! Whole rows, looked up and moved.

use std::ops::Range;

use crate::formats::CpuMatrix;
use crate::partition::{for_columns, for_rows};
use crate::pool::Pool;
use crate::tensor::CpuTensor;

/// See [`lockstep_backend::Ops::embed`].
pub(crate) fn embed(
    pool: &mut Pool,
    table: &CpuMatrix,
    first: u32,
    scale: f32,
    tokens: &[u32],
    out: &mut CpuTensor,
) {
    out.expect(tokens.len(), table.cols, "the embedding output");
    for_rows(pool, out.values_mut(), table.cols, |rows, part| {
        for (row, &token) in part.chunks_exact_mut(table.cols).zip(&tokens[rows]) {
            match token.checked_sub(first).map(|index| index as usize) {
                Some(index) if index < table.rows => {
                    table.read_row(index, row);
                    if scale != 1.0 {
                        row.iter_mut().for_each(|value| *value *= scale);
                    }
                }
                _ => row.fill(0.0),
            }
        }
    });
}

/// See [`lockstep_backend::Ops::gather_rows`].
pub(crate) fn gather(pool: &mut Pool, x: &CpuTensor, rows: &[u32], out: &mut CpuTensor) {
    let width = x.width();
    out.expect(rows.len(), width, "the gathered rows");
    let x = x.values();
    for_rows(pool, out.values_mut(), width, |range, part| {
        for (out, &row) in part.chunks_exact_mut(width).zip(&rows[range]) {
            out.copy_from_slice(&x[row as usize * width..(row as usize + 1) * width]);
        }
    });
}

/// Gathers rows that lie together.
pub(crate) fn gather_range(
    pool: &mut Pool,
    x: &CpuTensor,
    rows: Range<usize>,
    out: &mut CpuTensor,
) {
    let width = x.width();
    out.expect(rows.len(), width, "the gathered rows");
    let x = &x.values()[rows.start * width..rows.end * width];
    for_rows(pool, out.values_mut(), width, |range, part| {
        part.copy_from_slice(&x[range.start * width..range.end * width]);
    });
}

/// See [`lockstep_backend::Ops::copy_rows`]. Threads share the columns, because targets
/// lie anywhere and are often in no cache.
pub(crate) fn copy(pool: &mut Pool, x: &CpuTensor, from: &[u32], out: &mut CpuTensor, to: &[u32]) {
    let width = x.width();
    out.expect(out.rows(), width, "the copied rows' target");
    assert!(from.len() == to.len(), "every row copied has a target");
    let x = x.values();
    for_columns(pool, out.values_mut(), width, to.len(), |columns, part| {
        for (from, to) in from.iter().zip(to) {
            let from = *from as usize * width;
            let source = &x[from + columns.start..from + columns.end];
            part.row(*to as usize).copy_from_slice(source);
        }
    });
}

/// See [`lockstep_backend::Ops::place_columns`].
pub(crate) fn place(pool: &mut Pool, x: &CpuTensor, out: &mut CpuTensor, first: usize) {
    let (width, total) = (x.width(), out.width());
    out.expect(x.rows(), total, "the tensor that columns are placed in");
    assert!(first + width <= total, "columns lie within the tensor");
    let x = x.values();
    for_rows(pool, out.values_mut(), total, |rows, part| {
        let x = &x[rows.start * width..rows.end * width];
        for (x, out) in x.chunks_exact(width).zip(part.chunks_exact_mut(total)) {
            out[first..first + width].copy_from_slice(x);
        }
    });
}

/// See [`lockstep_backend::Ops::take_columns`].
pub(crate) fn take(pool: &mut Pool, x: &CpuTensor, first: usize, out: &mut CpuTensor) {
    let (width, total) = (out.width(), x.width());
    out.expect(x.rows(), width, "the tensor of columns");
    assert!(first + width <= total, "columns lie within the tensor");
    let x = x.values();
    for_rows(pool, out.values_mut(), width, |rows, part| {
        let x = &x[rows.start * total..rows.end * total];
        for (x, out) in x.chunks_exact(total).zip(part.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[first..first + width]);
        }
    });
}
