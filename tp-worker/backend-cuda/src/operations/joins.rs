//! Whole rows from the columns of several ranks.

use super::parameters::{JOINED, JoinColumns};
use super::{Operations, grid};
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::stream::Stream;

/// Columns of all ranks of some rows, where they have come together.
pub struct JoinedRows<'a> {
    /// How many there are.
    pub rows: usize,
    /// Columns of each rank.
    pub widths: &'a [usize],
    /// The rank whose columns were here already.
    pub own: usize,
    /// The others', in rank order, with room for its own: `[rows, width]` of each.
    pub parts: &'a Floats,
    /// Its own columns, of these rows and others.
    pub x: &'a Floats,
    /// The first of these rows there.
    pub first: usize,
}

impl Operations {
    /// `out[i]` = row `i` of all ranks' columns, in rank order, bit for bit.
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
                // One before these wraps around, and is none of them.
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
