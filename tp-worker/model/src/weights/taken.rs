//! What a rank takes of a tensor, which lies in a file or is made up.

use std::ops::Range;

use lockstep_backend::{HostMatrix, RandomBlock, RandomMatrix, RandomNumbers};

use super::HostTensor;

/// A matrix of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table<'a> {
    /// In a file.
    File(HostTensor<'a>),
    /// Made up.
    Random {
        numbers: RandomNumbers,
        rows: usize,
        cols: usize,
    },
}

/// The part of it that a rank takes, perhaps with parts of others.
#[derive(Debug, Clone)]
pub(crate) enum Taken<'a> {
    /// In files.
    File(HostMatrix<'a>),
    /// Made up.
    Random(RandomMatrix),
}

impl<'a> Table<'a> {
    /// All of it.
    pub fn whole(&self) -> Taken<'a> {
        match self {
            Self::File(tensor) => Taken::File(tensor.whole()),
            Self::Random { rows, .. } => self.take_rows(std::slice::from_ref(&(0..*rows))),
        }
    }

    /// The rows of `ranges`, top to bottom.
    pub fn take_rows(&self, ranges: &[Range<usize>]) -> Taken<'a> {
        match self {
            Self::File(tensor) => Taken::File(tensor.take_rows(ranges)),
            Self::Random { numbers, cols, .. } => {
                let block = |range: &Range<usize>| RandomBlock {
                    numbers: *numbers,
                    first: range.start * cols,
                    stride: *cols,
                    rows: range.len(),
                };
                Taken::Random(RandomMatrix {
                    cols: *cols,
                    blocks: ranges.iter().map(block).collect(),
                })
            }
        }
    }

    /// Some columns of all rows.
    pub fn take_columns(&self, columns: &Range<usize>) -> Taken<'a> {
        match self {
            Self::File(tensor) => Taken::File(HostMatrix {
                cols: columns.len(),
                dtype: tensor.dtype,
                blocks: vec![tensor.column_block(columns.start)],
            }),
            Self::Random {
                numbers,
                rows,
                cols,
            } => Taken::Random(RandomMatrix {
                cols: columns.len(),
                blocks: vec![RandomBlock {
                    numbers: *numbers,
                    first: columns.start,
                    stride: *cols,
                    rows: *rows,
                }],
            }),
        }
    }
}

impl Taken<'_> {
    /// Rows of all parts.
    pub fn rows(&self) -> usize {
        match self {
            Self::File(matrix) => matrix.rows(),
            Self::Random(matrix) => matrix.rows(),
        }
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        match self {
            Self::File(matrix) => matrix.cols,
            Self::Random(matrix) => matrix.cols,
        }
    }

    /// Its size on the host.
    pub fn bytes(&self) -> u64 {
        let element = match self {
            Self::File(matrix) => matrix.dtype.bytes(),
            Self::Random(_) => size_of::<half::bf16>(),
        };
        (self.rows() * self.cols() * element) as u64
    }

    /// Puts another below it; tells whether both are of one type.
    pub fn append(&mut self, other: Self) -> bool {
        match (self, other) {
            (Self::File(all), Self::File(other)) if all.dtype == other.dtype => {
                all.blocks.extend(other.blocks);
            }
            (Self::Random(all), Self::Random(other)) => all.blocks.extend(other.blocks),
            _ => return false,
        }
        true
    }
}
