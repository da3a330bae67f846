//! The owners of the rows of a matrix that is split by columns.

use std::ops::Range;

/// The rows of a matrix by their owners. The columns of the matrix are split over the ranks,
/// and an owner gets the columns of all ranks. All ranks must give the same owners.
#[derive(Debug, Clone, Copy)]
pub struct Owners<'a> {
    /// Number of columns that each rank brings.
    pub widths: &'a [usize],
    /// Rows that each rank gets. Several ranks may get the same rows. The largest end of
    /// these ranges is the number of rows of the matrix.
    pub rows: &'a [Range<usize>],
}

impl Owners<'_> {
    /// Returns the number of rows of the matrix.
    #[must_use]
    pub fn height(&self) -> usize {
        self.rows.iter().map(|rows| rows.end).max().unwrap_or(0)
    }

    /// Returns the range of elements that rank `to` gets from the columns of rank `from`.
    pub(crate) fn part(&self, from: usize, to: usize) -> Range<usize> {
        let (width, rows) = (self.widths[from], &self.rows[to]);
        rows.start * width..rows.end * width
    }

    /// Returns the numbers that ranks compare.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        let rows = self.rows.iter().flat_map(|rows| [rows.start, rows.end]);
        self.widths.iter().copied().chain(rows)
    }
}
