//! Floats in memory.

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

/// `rows` rows. Row `r` is `bytes[offset + r·stride ..][.. cols · element]`.
#[derive(Debug, Clone, Copy)]
pub struct HostBlock<'a> {
    /// Memory that the rows lie in, typically a mapped file.
    pub bytes: &'a [u8],
    /// Byte offset of the first row's first used column.
    pub offset: usize,
    /// Number of bytes from one row to the next.
    pub stride: usize,
    /// Number of rows in this block.
    pub rows: usize,
}

impl<'a> HostFloats<'a> {
    /// Returns the number of rows of all blocks.
    pub fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.rows).sum()
    }

    /// Returns the bytes of row `row`, counted over all blocks; `None` past the end.
    pub fn row(&self, row: usize) -> Option<&'a [u8]> {
        let mut row = row;
        for block in &self.blocks {
            if row < block.rows {
                let at = block.offset + row * block.stride;
                return block.bytes.get(at..at + self.cols * self.dtype.bytes());
            }
            row -= block.rows;
        }
        None
    }
}
