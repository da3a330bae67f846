//! Floats in memory that lie turned around: a row for each input of a matrix.

use super::HostMatrix;
use super::floats::CheckpointDtype;
use super::form::{HostBlock, HostForm};

/// Floats `[rows, cols]` in host memory whose columns lie one behind the other: some experts'
/// matrices do.
#[derive(Debug, Clone)]
pub struct HostTurned<'a> {
    /// Element type.
    pub dtype: CheckpointDtype,
    /// A row of memory for each column of the matrix.
    pub inputs: HostBlock<'a>,
    /// Elements of such a row, of which some are values of the matrix.
    pub width: usize,
    /// Places of the matrix's rows, top to bottom.
    pub outputs: Vec<Outputs>,
}

/// Rows of a matrix, as elements of each row of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outputs {
    /// Element that belongs to the first row.
    pub first: usize,
    /// Distance of the elements of neighbouring rows.
    pub step: usize,
    /// Number of rows.
    pub count: usize,
}

impl HostTurned<'_> {
    /// Returns the element of row `row` in each row of memory; `None` past the last row.
    fn element(&self, row: usize) -> Option<usize> {
        let mut row = row;
        for outputs in &self.outputs {
            if row < outputs.count {
                return Some(outputs.first + row * outputs.step);
            }
            row -= outputs.count;
        }
        None
    }
}

impl<'a> HostForm<'a> for HostTurned<'a> {
    fn rows(&self) -> usize {
        self.outputs.iter().map(|outputs| outputs.count).sum()
    }

    fn cols(&self) -> usize {
        self.inputs.rows
    }

    /// Returns the bytes of a row of memory.
    fn row_bytes(&self) -> usize {
        self.width * self.dtype.bytes()
    }

    /// Returns the rows of memory.
    fn blocks(&self) -> &[HostBlock<'a>] {
        std::slice::from_ref(&self.inputs)
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        HostMatrix::Turned(HostTurned {
            dtype: self.dtype,
            inputs: HostBlock {
                bytes,
                offset: 0,
                stride: self.row_bytes(),
                rows: self.inputs.rows,
            },
            width: self.width,
            outputs: self.outputs.clone(),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        let Some(element) = self.element(row) else {
            return;
        };
        let size = self.dtype.bytes();
        for (col, value) in (from..).zip(values) {
            let memory = self.inputs.row(col, self.row_bytes());
            if let Some(bytes) = memory.and_then(|row| row.get(element * size..)) {
                self.dtype.decode(bytes, std::slice::from_mut(value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// A part of a tensor of 5 inputs and 8 outputs: every second output, and then the ones
    /// between.
    #[test]
    fn columns_are_read_as_rows() {
        let stored: Vec<u8> = (0..40u8)
            .flat_map(|at| bf16::from_f32(f32::from(at)).to_le_bytes())
            .collect();
        let outputs = |first| Outputs {
            first,
            step: 2,
            count: 3,
        };
        let matrix = HostTurned {
            dtype: CheckpointDtype::Bf16,
            inputs: HostBlock {
                bytes: &stored,
                offset: (8 + 1) * 2,
                stride: 8 * 2,
                rows: 3,
            },
            width: 6,
            outputs: vec![outputs(0), outputs(1)],
        };
        let form: &dyn HostForm<'_> = &matrix;
        assert_eq!((form.rows(), form.cols(), form.row_bytes()), (6, 3, 12));
        let rows: Vec<&[u8]> = (0..3)
            .map(|at| matrix.inputs.row(at, 12).unwrap())
            .collect();
        let read = rows.concat();
        let HostMatrix::Turned(moved) = matrix.with_rows(&read) else {
            panic!("the form stays");
        };
        for matrix in [&matrix, &moved] {
            for (row, output) in [1, 3, 5, 2, 4, 6].into_iter().enumerate() {
                let mut values = [f32::NAN; 2];
                matrix.read(row, 1, &mut values);
                let expected = [2, 3].map(|input| (8 * input + output) as f32);
                assert_eq!(values, expected, "row {row}");
            }
        }
        let whole = HostMatrix::Turned(matrix);
        assert_eq!((whole.bytes(), whole.missing_row()), (36, None));
    }
}
