//! 8-bit floats in memory, with scales.

use std::sync::Arc;

use super::form::{HostBlock, HostForm, find, packed};
use super::{E4m3, HostMatrix};

/// 8-bit floats `[rows, cols]` (e4m3) in host memory, made of row blocks that may lie apart. A
/// value is a float times its scale, rounded to f32.
#[derive(Debug, Clone)]
pub struct HostFp8<'a> {
    /// Number of columns used.
    pub cols: usize,
    /// Row blocks of one byte per element, top to bottom.
    pub blocks: Vec<HostBlock<'a>>,
    /// Scales of each of `blocks`.
    pub scales: Vec<ScalePart>,
}

/// Scales of a part of a tensor.
#[derive(Debug, Clone)]
pub struct ScalePart {
    /// Scales of the whole tensor.
    pub whole: Arc<ScaleGrid>,
    /// Row of the tensor that the part begins at.
    pub row: usize,
    /// Column of the tensor that the part begins at.
    pub col: usize,
    /// Rows of the tensor from one row of the part to the next.
    pub step: usize,
}

/// Scales of a tensor, one for each block of rows and columns. Blocks at the lower and the
/// right edge may be smaller.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleGrid {
    /// Name of the tensor whose scales these are.
    pub tensor: String,
    /// Scales, row-major.
    pub values: Vec<f32>,
    /// Number of scales from one row of blocks to the next.
    pub stride: usize,
    /// Number of rows of a block.
    pub rows: usize,
    /// Number of columns of a block.
    pub cols: usize,
}

impl ScalePart {
    /// Returns the scale of an element, counted from the part's first one.
    fn at(&self, row: usize, col: usize) -> f32 {
        let grid = &self.whole;
        let (row, col) = (self.row + row * self.step, self.col + col);
        grid.values[row / grid.rows * grid.stride + col / grid.cols]
    }

    /// Returns the number of columns from `col` on, at least 1, that have one scale.
    fn run(&self, col: usize) -> usize {
        let cols = self.whole.cols;
        cols - (self.col + col) % cols
    }
}

impl HostFp8<'_> {
    /// Returns the codes of row `row` and the scale of its column `col`; `None` if its file
    /// does not hold the row.
    pub fn row(&self, row: usize, col: usize) -> Option<(&[u8], f32)> {
        let (block, row, codes) = find(&self.blocks, row, self.cols)?;
        Some((codes, self.scales[block].at(row, col)))
    }

    /// Puts the rows of `other` below these.
    pub(super) fn append(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.scales.extend(other.scales);
    }

    /// Returns the name of a tensor that holds a code which is no number.
    pub(super) fn wrong_tensor(&self) -> Option<&str> {
        let mut blocks = self.blocks.iter().zip(&self.scales);
        let (_, scales) = blocks.find(|(block, _)| {
            let mut rows = (0..block.rows).filter_map(|row| block.row(row, self.cols));
            // Without a branch for each code, so that many are compared at once.
            let wrong = |codes: &[u8]| codes.iter().fold(false, |w, code| w | E4m3(*code).is_nan());
            rows.any(wrong)
        })?;
        Some(&scales.whole.tensor)
    }
}

impl<'a> HostForm<'a> for HostFp8<'a> {
    fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.rows).sum()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn row_bytes(&self) -> usize {
        self.cols
    }

    fn blocks(&self) -> &[HostBlock<'a>] {
        &self.blocks
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        HostMatrix::Fp8(HostFp8 {
            cols: self.cols,
            blocks: packed(&self.blocks, self.cols, bytes),
            scales: self.scales.clone(),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        let Some((block, row, codes)) = find(&self.blocks, row, self.cols) else {
            return;
        };
        let scales = &self.scales[block];
        let mut at = 0;
        while at < values.len() {
            let count = scales.run(from + at).min(values.len() - at);
            let scale = scales.at(row, from + at);
            let codes = &codes[from + at..][..count];
            for (value, code) in values[at..].iter_mut().zip(codes) {
                *value = E4m3(*code).value() * scale;
            }
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a tensor that begins inside of a block, and the tensor computed element by
    /// element.
    #[test]
    fn scales_are_looked_up_by_place_in_the_tensor() {
        let (rows, cols) = (7, 11);
        let codes: Vec<u8> = (0..rows * cols).map(|at| (at * 37 % 120) as u8).collect();
        let grid = Arc::new(ScaleGrid {
            tensor: String::new(),
            values: (1..=9).map(|x| x as f32 / 3.0).collect(),
            stride: 3,
            rows: 3,
            cols: 4,
        });
        let part = |row: usize, count: usize, col: usize| {
            let block = HostBlock {
                bytes: &codes,
                offset: row * cols + col,
                stride: cols,
                rows: count,
            };
            let whole = Arc::clone(&grid);
            (
                block,
                ScalePart {
                    whole,
                    row,
                    col,
                    step: 1,
                },
            )
        };
        let (blocks, scales) = [part(5, 2, 2), part(1, 3, 2)].into_iter().unzip();
        let mut matrix = HostFp8 {
            cols: 8,
            blocks,
            scales,
        };
        let (block, scale) = part(0, 1, 2);
        matrix.append(HostFp8 {
            cols: 8,
            blocks: vec![block],
            scales: vec![scale],
        });
        let read: Vec<u8> = [5, 6, 1, 2, 3, 0]
            .iter()
            .flat_map(|row| &codes[row * cols + 2..row * cols + 10])
            .copied()
            .collect();
        let HostMatrix::Fp8(moved) = matrix.with_rows(&read) else {
            panic!("the form stays");
        };
        for matrix in [&matrix, &moved] {
            for (row, from) in [5, 6, 1, 2, 3, 0].into_iter().enumerate() {
                for start in 0..8 {
                    let mut values = vec![f32::NAN; 8 - start];
                    matrix.read(row, start, &mut values);
                    for (at, value) in values.iter().enumerate() {
                        let col = 2 + start + at;
                        let scale = grid.values[from / 3 * 3 + col / 4];
                        let code = E4m3(codes[from * cols + col]);
                        assert_eq!(*value, code.value() * scale, "{row} {start} {at}");
                        assert_eq!(matrix.row(row, start + at).unwrap().1, scale);
                    }
                }
            }
        }
    }
}
