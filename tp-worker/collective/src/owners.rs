//! Who gets which rows of what is split by columns.

use std::ops::Range;

/// The rows of a matrix whose columns are split over the ranks, by who gets
/// them, with the columns of all ranks. Equal on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Owners<'a> {
    /// Columns that each rank brings.
    pub widths: &'a [usize],
    /// Rows that each rank gets; several may get the same. The last of all is
    /// the matrix' last row.
    pub rows: &'a [Range<usize>],
}

impl Owners<'_> {
    /// Rows of the matrix.
    #[must_use]
    pub fn height(&self) -> usize {
        self.rows.iter().map(|rows| rows.end).max().unwrap_or(0)
    }

    /// Elements of `from`'s part that `to` gets.
    pub(crate) fn part(&self, from: usize, to: usize) -> Range<usize> {
        let (width, rows) = (self.widths[from], &self.rows[to]);
        rows.start * width..rows.end * width
    }

    /// What ranks compare.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        let rows = self.rows.iter().flat_map(|rows| [rows.start, rows.end]);
        self.widths.iter().copied().chain(rows)
    }
}
