//! Whole rows, looked up and moved.

use std::ops::Range;

use crate::pack::CpuMatrix;
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::stream;
use crate::tensor::CpuTensor;

/// Tensors with more values than this are not kept in caches.
const IN_CACHE: usize = 1 << 18;
/// Values that one thread copies in about the time in which two agree to share them.
const OWN_COPY: usize = 1 << 14;

/// See [`lockstep_backend::Backend::embed`].
pub(crate) fn embed(
    pool: &mut Pool,
    table: &CpuMatrix,
    first: u32,
    tokens: &[u32],
    out: &mut CpuTensor,
) {
    out.expect(tokens.len(), table.cols, "the embedding output");
    for_rows(pool, out.values_mut(), table.cols, |rows, part| {
        for (row, &token) in part.chunks_exact_mut(table.cols).zip(&tokens[rows]) {
            match token.checked_sub(first).map(|index| index as usize) {
                Some(index) if index < table.rows => table.read_row(index, row),
                _ => row.fill(0.0),
            }
        }
    });
}

/// See [`lockstep_backend::Backend::gather_rows`].
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

/// See [`lockstep_backend::Backend::copy_rows`]. The rows are few, one per
/// request or drafted token, so the caller copies them alone.
pub(crate) fn copy(x: &CpuTensor, from: &[u32], out: &mut CpuTensor, to: &[u32]) {
    let width = x.width();
    out.expect(out.rows(), width, "the copied rows' target");
    assert!(from.len() == to.len(), "every row copied has a target");
    let (x, out) = (x.values(), out.values_mut());
    let range = |row: u32| row as usize * width..(row as usize + 1) * width;
    // Of a tensor that no cache holds next to weights, rows go past the caches: nobody
    // reads them soon, and weights stay.
    let passes_caches = out.len() > IN_CACHE;
    for (from, to) in from.iter().zip(to) {
        let (from, to) = (&x[range(*from)], &mut out[range(*to)]);
        match passes_caches {
            true => stream::copy(from, to),
            false => to.copy_from_slice(from),
        }
    }
    if passes_caches {
        stream::end();
    }
}

/// See [`lockstep_backend::Backend::place_columns`]. Few rows are in the cache of the caller
/// alone, who has just normed them.
pub(crate) fn place(pool: &mut Pool, x: &CpuTensor, out: &mut CpuTensor, first: usize) {
    let (width, total) = (x.width(), out.width());
    out.expect(x.rows(), total, "the tensor that columns are placed in");
    assert!(first + width <= total, "columns lie within the tensor");
    let x = x.values();
    let place = |rows: Range<usize>, part: &mut [f32]| {
        let x = &x[rows.start * width..rows.end * width];
        for (x, out) in x.chunks_exact(width).zip(part.chunks_exact_mut(total)) {
            out[first..first + width].copy_from_slice(x);
        }
    };
    match x.len() {
        ..=OWN_COPY => place(0..x.len() / width.max(1), out.values_mut()),
        _ => for_rows(pool, out.values_mut(), total, place),
    }
}
