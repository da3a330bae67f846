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
        let bytes = &self.bytes[range.start * size..range.end * size];
        match self.dtype {
            CheckpointDtype::F32 => little_endian(bytes).map(f32::from_le_bytes).collect(),
            CheckpointDtype::Bf16 => little_endian(bytes)
                .map(|bytes| half::bf16::from_le_bytes(bytes).to_f32())
                .collect(),
            CheckpointDtype::F16 => little_endian(bytes)
                .map(|bytes| half::f16::from_le_bytes(bytes).to_f32())
                .collect(),
        }
    }
}

/// Returns the elements of a file, `N` bytes each.
pub(super) fn little_endian<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}
