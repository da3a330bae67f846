//! One tensor on the host.

use std::ops::Range;

use lockstep_backend::{CheckpointDtype, HostBlock, HostMatrix};

/// One tensor on the host: row-major, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct HostTensor<'a> {
    /// Element type.
    pub dtype: CheckpointDtype,
    /// Rows (1 for a vector).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// `rows · cols` elements.
    pub bytes: &'a [u8],
}

impl<'a> HostTensor<'a> {
    /// Rows `first..first + rows`, all columns.
    pub fn row_block(&self, first: usize, rows: usize) -> HostBlock<'a> {
        let stride = self.cols * self.dtype.bytes();
        HostBlock {
            bytes: self.bytes,
            offset: first * stride,
            stride,
            rows,
        }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> HostMatrix<'a> {
        HostMatrix {
            cols: self.cols,
            dtype: self.dtype,
            blocks: vec![self.row_block(0, self.rows)],
        }
    }

    /// The rows of `ranges`, top to bottom.
    pub(crate) fn take_rows(&self, ranges: &[Range<usize>]) -> HostMatrix<'a> {
        HostMatrix {
            cols: self.cols,
            dtype: self.dtype,
            blocks: ranges
                .iter()
                .map(|range| self.row_block(range.start, range.len()))
                .collect(),
        }
    }

    /// All rows, columns from `first` on (the matrix says how many).
    pub fn column_block(&self, first: usize) -> HostBlock<'a> {
        HostBlock {
            bytes: self.bytes,
            offset: first * self.dtype.bytes(),
            stride: self.cols * self.dtype.bytes(),
            rows: self.rows,
        }
    }

    /// Elements `range` as f32 (exact for every type served).
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

/// The elements of a file, `N` bytes each.
pub(super) fn little_endian<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}
