//! A rank's part of a tensor that lies in a file or is made up.

use std::ops::Range;

use lockstep_backend::{HostFloats, HostMatrix, RandomBlock, RandomMatrix, RandomNumbers};

use super::HostTensor;

/// A matrix of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table<'a> {
    /// The matrix is in a file.
    File(HostTensor<'a>),
    /// The matrix is made up.
    Random { numbers: RandomNumbers, cols: usize },
}

impl<'a> Table<'a> {
    /// Takes the columns `columns` of the rows in `ranges`, from top to bottom.
    pub fn take(&self, ranges: &[Range<usize>], columns: &Range<usize>) -> HostMatrix<'a> {
        match self {
            Self::File(tensor) => HostMatrix::Floats(HostFloats {
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
                HostMatrix::Random(RandomMatrix {
                    cols: columns.len(),
                    blocks: ranges.iter().map(block).collect(),
                })
            }
        }
    }
}
