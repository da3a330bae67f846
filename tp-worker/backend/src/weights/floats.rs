//! Floats in memory.

use half::f16;

use super::HostMatrix;
use super::form::{HostBlock, HostForm, find, packed};

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointDtype {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
}

impl CheckpointDtype {
    /// Returns the bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Decodes little-endian elements to f32, which holds all of them exactly.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::Bf16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            Self::F16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }
}

/// Floats `[rows, cols]` in host memory, made of row blocks that may lie apart (q, k and v;
/// gate and up; a shard of heads). Each block is row-major with its own stride, little-endian.
#[derive(Debug, Clone)]
pub struct HostFloats<'a> {
    /// Number of columns used.
    pub cols: usize,
    /// Element type of `blocks`.
    pub dtype: CheckpointDtype,
    /// Row blocks, top to bottom.
    pub blocks: Vec<HostBlock<'a>>,
}

impl<'a> HostFloats<'a> {
    /// Returns the bytes of row `row`, counted over all blocks; `None` past the end.
    pub fn row(&self, row: usize) -> Option<&'a [u8]> {
        let (_, _, bytes) = find(&self.blocks, row, self.row_bytes())?;
        Some(bytes)
    }

    /// Returns true if the rows of `other` can lie below these: they are of one type.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.dtype == other.dtype
    }

    /// Puts the rows of `other` below these.
    pub(super) fn append(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
    }
}

impl<'a> HostForm<'a> for HostFloats<'a> {
    fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.rows).sum()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn row_bytes(&self) -> usize {
        self.cols * self.dtype.bytes()
    }

    fn blocks(&self) -> &[HostBlock<'a>] {
        &self.blocks
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        HostMatrix::Floats(HostFloats {
            cols: self.cols,
            dtype: self.dtype,
            blocks: packed(&self.blocks, self.row_bytes(), bytes),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        let width = self.dtype.bytes();
        let bytes = self.row(row).and_then(|row| row.get(from * width..));
        self.dtype.decode(bytes.unwrap_or_default(), values);
    }
}
