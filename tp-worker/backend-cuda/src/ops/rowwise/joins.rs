//! Whole rows from the columns of several ranks.

use super::parameters::{JOINED, JoinColumns};
use super::{Operations, grid};
use crate::error::CudaError;
use crate::runtime::Stream;
use crate::tensors::{Element, Floats};

/// Columns of all ranks for some rows, gathered on one rank.
pub struct JoinedRows<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns of each rank.
    pub widths: &'a [usize],
    /// The rank that joins the columns; its own columns come from `x`.
    pub own: usize,
    /// Columns of the other ranks, in rank order, `[rows, width]` of each, with an unused place
    /// for this rank's.
    pub parts: &'a Floats,
    /// This rank's columns, of these rows and others.
    pub x: &'a Floats,
    /// Index in `x` of the first of these rows.
    pub first: usize,
}

impl Operations {
    /// `out[i]` = the columns of all ranks of row `i`, in rank order, bit for bit.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn join_columns(
        &self,
        stream: &Stream,
        joined: &JoinedRows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let JoinedRows {
            rows,
            widths,
            own,
            parts,
            x,
            first,
        } = *joined;
        let (width, own_width) = (widths.iter().sum::<usize>(), widths[own]);
        parts.expect(Element::F32, rows * width, "columns of all ranks");
        out.expect(Element::F32, rows * width, "rows of all ranks' columns");
        x.expect(
            Element::F32,
            (first + rows) * own_width,
            "this rank's columns",
        );
        let mut start = 0;
        for (number, widths) in widths.chunks(JOINED).enumerate() {
            let (mut starts, begin) = ([start as u32; JOINED + 1], start);
            for (end, width) in starts[1..].iter_mut().zip(widths) {
                start += width;
                *end = start as u32;
            }
            let parameters = JoinColumns {
                parts: parts.address() + 4 * (rows * begin) as u64,
                x: x.address() + 4 * (first * own_width) as u64,
                out: out.address(),
                rows: rows as u32,
                width: width as u32,
                ranks: widths.len() as u32,
                // A rank before this launch's wraps around to a number that is none of them.
                own: (own as u32).wrapping_sub((number * JOINED) as u32),
                starts,
            };
            // SAFETY: all have room for so many rows of these columns.
            unsafe {
                let grid = grid(rows, start - begin);
                self.join_columns.launch(stream, grid, &parameters)?;
            }
        }
        Ok(())
    }
}
