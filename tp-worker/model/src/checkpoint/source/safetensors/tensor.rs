//! One tensor on the host.

use std::ops::Range;

use lockstep_backend::{CheckpointDtype, HostBlock};

/// One tensor on the host: row-major, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct HostTensor<'a> {
    /// Type of the elements.
    pub dtype: CheckpointDtype,
    /// Number of rows; 1 for a vector.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Bytes of the `rows · cols` elements.
    pub bytes: &'a [u8],
}

impl<'a> HostTensor<'a> {
    /// Returns the block of `rows`, from the column `first` on. The matrix says how many
    /// columns.
    pub fn block(&self, rows: Range<usize>, first: usize) -> HostBlock<'a> {
        let size = self.dtype.bytes();
        HostBlock {
            bytes: self.bytes,
            offset: (rows.start * self.cols + first) * size,
            stride: self.cols * size,
            rows: rows.len(),
        }
    }

    /// Returns the elements `range` as f32, which is exact for every type served.
    pub fn to_f32(&self, range: Range<usize>) -> Vec<f32> {
        let size = self.dtype.bytes();
        let mut values = vec![0.0; range.len()];
        let bytes = &self.bytes[range.start * size..range.end * size];
        self.dtype.decode(bytes, &mut values);
        values
    }
}

/// Returns the elements of a file, `N` bytes each.
pub(super) fn little_endian<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}
