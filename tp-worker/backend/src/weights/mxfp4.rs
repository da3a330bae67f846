//! 4-bit floats in memory, with an exponent for every 32 columns.

use super::form::{HostBlock, HostForm, find, packed};
use super::{E2m1, E8m0, HostMatrix};

/// 4-bit floats `[rows, cols]` (e2m1) in host memory, made of row blocks that may lie apart. Two
/// lie in a byte, the earlier one in the low half. A value is a float times its group's power of
/// two, which is exact in every type of 16 or 32 bits.
#[derive(Debug, Clone)]
pub struct HostMxfp4<'a> {
    /// Number of columns used.
    pub cols: usize,
    /// Columns of the first group that are not used.
    pub skipped: usize,
    /// Row blocks of floats, top to bottom, in whole groups.
    pub blocks: Vec<HostBlock<'a>>,
    /// Row blocks of exponents, as many and as high: a byte for each group.
    pub exponents: Vec<HostBlock<'a>>,
}

impl<'a> HostMxfp4<'a> {
    /// Columns that share an exponent.
    pub const GROUP: usize = 32;
    /// Bytes of a group's floats.
    pub const GROUP_BYTES: usize = Self::GROUP / 2;

    /// Returns the number of groups of a row.
    pub fn groups(&self) -> usize {
        (self.skipped + self.cols).div_ceil(Self::GROUP)
    }

    /// Returns floats and exponents of row `row`, in whole groups; `None` if its file does not
    /// hold the row.
    pub fn row(&self, row: usize) -> Option<(&'a [u8], &'a [u8])> {
        let groups = self.groups();
        let (.., codes) = find(&self.blocks, row, groups * Self::GROUP_BYTES)?;
        let (.., exponents) = find(&self.exponents, row, groups)?;
        Some((codes, exponents))
    }

    /// Returns true if the rows of `other` can lie below these: their columns begin at one place
    /// of a group.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.skipped == other.skipped
    }

    /// Puts the rows of `other` below these.
    pub(super) fn append(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.exponents.extend(other.exponents);
    }
}

impl<'a> HostForm<'a> for HostMxfp4<'a> {
    fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.rows).sum()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the bytes of a row's floats.
    fn row_bytes(&self) -> usize {
        self.groups() * Self::GROUP_BYTES
    }

    /// Returns the places of the floats.
    fn blocks(&self) -> &[HostBlock<'a>] {
        &self.blocks
    }

    fn parts(&self) -> Vec<(&[HostBlock<'a>], usize)> {
        vec![
            (&self.blocks, self.row_bytes()),
            (&self.exponents, self.groups()),
        ]
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        let (codes, exponents) = bytes.split_at(self.rows() * self.row_bytes());
        HostMatrix::Mxfp4(HostMxfp4 {
            cols: self.cols,
            skipped: self.skipped,
            blocks: packed(&self.blocks, self.row_bytes(), codes),
            exponents: packed(&self.exponents, self.groups(), exponents),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        let Some((codes, exponents)) = self.row(row) else {
            return;
        };
        for (col, value) in (self.skipped + from..).zip(values) {
            let code = codes[col / 2] >> (4 * (col % 2));
            *value = E2m1(code).value() * E8m0(exponents[col / Self::GROUP]).value();
        }
    }
}

/// 32 columns of a row as 4-bit floats, which share an exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mxfp4Group {
    /// The floats, in the low half of a byte each. Those behind the row's last column are zeros.
    pub codes: [u8; HostMxfp4::GROUP],
    /// The exponent (e8m0). Where it is no number, all floats are zeros.
    pub exponent: u8,
}

impl Mxfp4Group {
    /// Returns the columns of row `row` of `matrix` from `from` on, a multiple of 32. A checkpoint's
    /// groups stay what they are. Other floats are rounded.
    pub fn of(matrix: &HostMatrix<'_>, row: usize, from: usize) -> Self {
        let count = HostMxfp4::GROUP.min(matrix.cols().saturating_sub(from));
        match matrix {
            HostMatrix::Mxfp4(stored) if stored.skipped == 0 => {
                Self::stored(stored, row, from, count)
            }
            other => Self::rounded(other, row, from, count),
        }
    }

    fn stored(stored: &HostMxfp4<'_>, row: usize, from: usize, count: usize) -> Self {
        let (mut codes, mut exponent) = ([0; HostMxfp4::GROUP], 0);
        if let Some((bytes, exponents)) = stored.row(row) {
            exponent = exponents[from / HostMxfp4::GROUP];
            let pairs = &bytes[from / 2..][..count.div_ceil(2)];
            for (codes, pair) in codes.chunks_exact_mut(2).zip(pairs) {
                (codes[0], codes[1]) = (pair & 15, pair >> 4);
            }
            codes[count..].fill(0);
            if E8m0(exponent).value().is_nan() {
                codes.fill(0);
            }
        }
        Self { codes, exponent }
    }

    /// The exponent brings the largest magnitude just below the largest number, as the format's
    /// specification suggests.
    fn rounded(matrix: &HostMatrix<'_>, row: usize, from: usize, count: usize) -> Self {
        let mut values = [0.0f32; HostMxfp4::GROUP];
        matrix.form().read(row, from, &mut values[..count]);
        if values.iter().any(|value| !value.is_finite()) {
            return Self {
                codes: [0; HostMxfp4::GROUP],
                exponent: u8::MAX,
            };
        }
        let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        // The exponent of the largest number is 2.
        let exponent = (largest.to_bits() >> 23).saturating_sub(2) as u8;
        let power = E8m0(exponent).value();
        let codes = values.map(|value| E2m1::nearest(value / power).0 & 15);
        Self { codes, exponent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a tensor that begins inside of a group, with rows that lie apart.
    #[test]
    fn values_are_floats_times_the_powers_of_their_groups() {
        let (rows, groups) = (7, 3);
        let codes: Vec<u8> = (0..rows * groups * 16).map(|at| (at * 37) as u8).collect();
        let exponents: Vec<u8> = (0..rows * groups).map(|at| 120 + (at % 9) as u8).collect();
        let block = |bytes, width: usize, row: usize, step: usize, rows| HostBlock {
            bytes,
            offset: (row * groups + 1) * width,
            stride: step * groups * width,
            rows,
        };
        let matrix = HostMxfp4 {
            cols: 40,
            skipped: 5,
            blocks: vec![block(&codes, 16, 1, 2, 3), block(&codes, 16, 0, 1, 1)],
            exponents: vec![block(&exponents, 1, 1, 2, 3), block(&exponents, 1, 0, 1, 1)],
        };
        let order = [1, 3, 5, 0];
        let mut read = Vec::new();
        for (blocks, width) in matrix.parts() {
            for block in blocks {
                (0..block.rows).for_each(|row| read.extend(block.row(row, width).unwrap()));
            }
        }
        let HostMatrix::Mxfp4(moved) = matrix.with_rows(&read) else {
            panic!("the form stays");
        };
        for matrix in [&matrix, &moved] {
            for (row, from) in order.into_iter().enumerate() {
                for start in [0, 1, 26, 27, 39] {
                    let mut values = vec![f32::NAN; 40 - start];
                    matrix.read(row, start, &mut values);
                    for (at, value) in values.iter().enumerate() {
                        let col = 32 + 5 + start + at;
                        let code = codes[from * groups * 16 + col / 2] >> (4 * (col % 2)) & 15;
                        let power = E8m0(exponents[from * groups + col / 32]);
                        assert_eq!(
                            *value,
                            E2m1(code).value() * power.value(),
                            "{row} {start} {at}"
                        );
                    }
                }
            }
        }
        let whole = HostMatrix::Mxfp4(matrix);
        assert_eq!((whole.bytes(), whole.missing_row()), (4 * 2 * 17, None));
    }
}
