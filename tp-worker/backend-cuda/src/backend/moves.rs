//! Gathering and copying of listed rows, and of rows to another type.

use std::collections::HashSet;

use lockstep_backend::Rows as Gathered;

use super::CudaBackend;
use crate::error::CudaError;
use crate::ops::Indices;
use crate::passes::Inputs;
use crate::tensors::{CudaTensor, Rows};

impl CudaBackend {
    /// See [`lockstep_backend::Ops::gather_rows`].
    pub(super) fn gather(
        &mut self,
        x: &CudaTensor,
        rows: Gathered<'_, Inputs>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (stream, width) = (&self.stream, x.width());
        let count = match &rows {
            Gathered::Wanted(_, range) => range.len(),
            Gathered::List(list) => list.len(),
            Gathered::Range(range) => range.len(),
        };
        out.expect(count, width, "the gathered rows");
        if count == 0 {
            return Ok(());
        }
        let indices = match rows {
            Gathered::Wanted(inputs, range) => Indices::Wanted(inputs, range.start),
            Gathered::List(list) => {
                let copy = |to: &mut [u32]| to.copy_from_slice(list);
                Indices::List(self.lists.bring(stream, count, copy)?, 0)
            }
            Gathered::Range(range) => {
                let (rows, out) = (Rows::fixed(count), &mut out.floats);
                let (x, first) = (&x.floats, range.start);
                return self
                    .operations
                    .take_rows(stream, x, width, first, rows, out);
            }
        };
        // A batch may want fewer rows than the launch is for.
        let rows = match &indices {
            Indices::Wanted(inputs, 0) => inputs.wanted_of(count),
            _ => Rows::fixed(count),
        };
        let out = &mut out.floats;
        self.operations
            .gather_rows(stream, &x.floats, width, Some(indices), rows, out)
    }

    /// Rounds sums to operands.
    pub(super) fn cast(&mut self, x: &CudaTensor, to: &mut CudaTensor) -> Result<(), CudaError> {
        let (rows, width) = (x.rows(), x.width());
        to.expect(rows, width, "an operand");
        let (stream, rows) = (&self.stream, self.chains.rows(rows));
        let to = &mut to.floats;
        self.operations.cast(stream, &x.floats, width, rows, to)
    }

    /// See [`lockstep_backend::Ops::copy_rows`].
    pub(super) fn copy(
        &mut self,
        x: &CudaTensor,
        from: &[u32],
        out: &mut CudaTensor,
        to: &[u32],
    ) -> Result<(), CudaError> {
        let (stream, width, count) = (&self.stream, x.width(), from.len());
        assert!(
            width == out.width() && count == to.len(),
            "rows are copied one to one"
        );
        debug_assert!(distinct(to), "no row is a target twice");
        if count == 0 {
            return Ok(());
        }
        let list = self.lists.bring(stream, 2 * count, |words| {
            words[..count].copy_from_slice(from);
            words[count..].copy_from_slice(to);
        })?;
        let (rows, out) = (Rows::fixed(count), &mut out.floats);
        let (from, to) = (Indices::List(list, 0), Indices::List(list, count));
        self.operations
            .copy_rows(stream, &x.floats, from, width, rows, out, to)
    }

    /// See [`lockstep_backend::Ops::place_columns`].
    pub(super) fn place(
        &mut self,
        x: &CudaTensor,
        out: &mut CudaTensor,
        first: usize,
    ) -> Result<(), CudaError> {
        let (rows, width, out_width) = (x.rows(), x.width(), out.width());
        out.expect(rows, out_width, "what columns are placed in");
        let (x, rows, out) = (&x.floats, self.chains.rows(rows), &mut out.floats);
        let stream = &self.stream;
        self.operations
            .place_columns(stream, x, width, rows, out, out_width, first)
    }

    /// See [`lockstep_backend::Ops::take_columns`].
    pub(super) fn take(
        &mut self,
        x: &CudaTensor,
        first: usize,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (rows, x_width, width) = (x.rows(), x.width(), out.width());
        out.expect(rows, width, "the tensor of columns");
        let (x, rows, out) = (&x.floats, self.chains.rows(rows), &mut out.floats);
        let stream = &self.stream;
        self.operations
            .take_columns(stream, x, x_width, first, rows, out, width)
    }
}

/// Returns true if no row is named twice.
fn distinct(rows: &[u32]) -> bool {
    let mut seen = HashSet::with_capacity(rows.len());
    rows.iter().all(|row| seen.insert(row))
}
