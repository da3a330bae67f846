//! A rank's part of a tensor that lies in a file or is made up.

use std::ops::Range;

use lockstep_backend::{HostMatrix, RandomBlock, RandomMatrix, RandomNumbers};

use super::HostTensor;

/// A matrix of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table<'a> {
    /// The matrix is in a file.
    File(HostTensor<'a>),
    /// The matrix is made up.
    Random { numbers: RandomNumbers, cols: usize },
}

/// A rank's part of a [`Table`], perhaps with parts of other tables below it.
#[derive(Debug, Clone)]
pub(crate) enum Taken<'a> {
    /// The parts are in files.
    File(HostMatrix<'a>),
    /// The parts are made up.
    Random(RandomMatrix),
}

impl<'a> Table<'a> {
    /// Takes the columns `columns` of the rows in `ranges`, from top to bottom.
    pub fn take(&self, ranges: &[Range<usize>], columns: &Range<usize>) -> Taken<'a> {
        match self {
            Self::File(tensor) => Taken::File(HostMatrix {
                cols: columns.len(),
                dtype: tensor.dtype,
                blocks: ranges
                    .iter()
                    .map(|rows| tensor.block(rows.clone(), columns.start))
                    .collect(),
            }),
            Self::Random { numbers, cols } => {
                let block = |rows: &Range<usize>| RandomBlock {
                    numbers: *numbers,
                    first: rows.start * cols + columns.start,
                    stride: *cols,
                    rows: rows.len(),
                };
                Taken::Random(RandomMatrix {
                    cols: columns.len(),
                    blocks: ranges.iter().map(block).collect(),
                })
            }
        }
    }
}

impl Taken<'_> {
    /// Number of rows of all parts.
    pub fn rows(&self) -> usize {
        match self {
            Self::File(matrix) => matrix.rows(),
            Self::Random(matrix) => matrix.rows(),
        }
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        match self {
            Self::File(matrix) => matrix.cols,
            Self::Random(matrix) => matrix.cols,
        }
    }

    /// Bytes of the parts on the host.
    pub fn bytes(&self) -> u64 {
        let element = match self {
            Self::File(matrix) => matrix.dtype.bytes(),
            Self::Random(_) => size_of::<half::bf16>(),
        };
        (self.rows() * self.cols() * element) as u64
    }

    /// Puts `other` below this part. Returns false if their types differ.
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
