//! 8-bit floats in memory that lie turned around: a row for each input of a matrix.

use super::HostMatrix;
use super::form::{HostBlock, HostForm};
use super::fp8::HostFp8;

/// 8-bit floats `[rows, cols]` with scales, in host memory as the matrix `[cols, rows]`: key
/// matrices of latent attention lie so. No device multiplies by them as they are.
#[derive(Debug, Clone)]
pub struct HostTurnedFp8<'a> {
    /// The matrix as it lies in memory.
    pub stored: HostFp8<'a>,
}

impl<'a> HostForm<'a> for HostTurnedFp8<'a> {
    fn rows(&self) -> usize {
        self.stored.cols()
    }

    fn cols(&self) -> usize {
        self.stored.rows()
    }

    /// Returns the bytes of a row of memory.
    fn row_bytes(&self) -> usize {
        self.stored.row_bytes()
    }

    /// Returns the rows of memory.
    fn blocks(&self) -> &[HostBlock<'a>] {
        self.stored.blocks()
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        match self.stored.with_rows(bytes) {
            HostMatrix::Fp8(stored) => HostMatrix::TurnedFp8(HostTurnedFp8 { stored }),
            other => other,
        }
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        for (col, value) in (from..).zip(values) {
            self.stored.read(col, row, std::slice::from_mut(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{ScaleGrid, ScalePart};

    #[test]
    fn columns_are_read_as_rows() {
        let codes: Vec<u8> = (0..60).map(|at| (at * 37 % 120) as u8).collect();
        let whole = Arc::new(ScaleGrid {
            tensor: String::new(),
            values: (1..=6).map(|x| x as f32 / 3.0).collect(),
            stride: 3,
            rows: 4,
            cols: 4,
        });
        let stored = HostFp8 {
            cols: 10,
            blocks: vec![HostBlock {
                bytes: &codes,
                offset: 10,
                stride: 10,
                rows: 5,
            }],
            scales: vec![ScalePart {
                whole,
                row: 1,
                col: 0,
                step: 1,
            }],
        };
        let turned = HostTurnedFp8 {
            stored: stored.clone(),
        };
        assert_eq!((turned.rows(), turned.cols()), (10, 5));
        let HostMatrix::TurnedFp8(moved) = turned.with_rows(&codes[10..60]) else {
            panic!("the form stays");
        };
        for turned in [turned, moved] {
            for row in 0..10 {
                let mut values = [f32::NAN; 3];
                turned.read(row, 2, &mut values);
                for (col, value) in (2..).zip(values) {
                    let mut expected = [f32::NAN];
                    stored.read(col, row, &mut expected);
                    assert_eq!([value], expected, "{row} {col}");
                }
            }
        }
    }
}
