//! Blocks of GGUF files in memory.

mod part;

use std::sync::Arc;

use lockstep_types::{BlockType, Codes, GroupFormat};

use super::HostMatrix;
use super::form::{HostBlock, HostForm, find, packed};
use super::groups::{GroupStep, HostGroups};
use part::{PART, Part, factors};

/// Blocks `[rows, cols]` of one type in host memory, made of row blocks that may lie apart. A value
/// is what ggml makes of it in f32.
#[derive(Debug, Clone)]
pub struct HostGguf<'a> {
    /// Type of the blocks.
    pub kind: BlockType,
    /// Number of columns used.
    pub cols: usize,
    /// Columns of the first block that are not used.
    pub skipped: usize,
    /// Row blocks of whole blocks, top to bottom.
    pub blocks: Vec<HostBlock<'a>>,
    /// Name of the tensor that each of `blocks` is a part of.
    pub tensors: Vec<Arc<str>>,
}

impl<'a> HostGguf<'a> {
    /// Returns the bytes of row `row`, in whole blocks; `None` if its file does not hold the row.
    fn row(&self, row: usize) -> Option<&'a [u8]> {
        let (.., bytes) = find(&self.blocks, row, self.row_bytes())?;
        Some(bytes)
    }

    /// Returns the part of the block that holds column `col` of a row, counted from its tensor's
    /// block, and the number of the column in the part.
    fn part<'b>(&self, row: &'b [u8], col: usize) -> (Part<'b>, usize) {
        let (elements, bytes) = (self.kind.elements(), self.kind.bytes());
        let col = self.skipped + col;
        let part = Part {
            kind: self.kind,
            block: &row[col / elements * bytes..][..bytes],
            number: col % elements / PART,
        };
        (part, col % PART)
    }

    /// Calls `write` for each part of a row from column `from` on: with the part, the first of its
    /// columns, and the items of `out` for its columns.
    fn each_part<T>(
        &self,
        row: usize,
        from: usize,
        out: &mut [T],
        mut write: impl FnMut(&Part<'_>, usize, &mut [T]),
    ) {
        let Some(row) = self.row(row) else {
            return;
        };
        let mut at = 0;
        while at < out.len() {
            let (part, first) = self.part(row, from + at);
            let count = (PART - first).min(out.len() - at);
            write(&part, first, &mut out[at..at + count]);
            at += count;
        }
    }

    /// Returns true if the rows of `other` can lie below these.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.kind, self.skipped) == (other.kind, other.skipped)
    }

    /// Puts the rows of `other` below these.
    pub(super) fn append(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.tensors.extend(other.tensors);
    }

    /// Returns the name of a tensor that holds a factor which is no finite number.
    pub(super) fn wrong_tensor(&self) -> Option<&str> {
        let width = self.row_bytes();
        let mut blocks = self.blocks.iter().zip(&self.tensors);
        let (_, tensor) = blocks.find(|(block, _)| {
            let mut rows = (0..block.rows).filter_map(|row| block.row(row, width));
            rows.any(|row| {
                let mut own = row.chunks_exact(self.kind.bytes());
                own.any(|block| factors(self.kind, block).iter().any(|own| !own.is_finite()))
            })
        })?;
        Some(tensor)
    }
}

impl<'a> HostForm<'a> for HostGguf<'a> {
    fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.rows).sum()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn row_bytes(&self) -> usize {
        (self.skipped + self.cols).div_ceil(self.kind.elements()) * self.kind.bytes()
    }

    fn blocks(&self) -> &[HostBlock<'a>] {
        &self.blocks
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        HostMatrix::Gguf(HostGguf {
            kind: self.kind,
            cols: self.cols,
            skipped: self.skipped,
            blocks: packed(&self.blocks, self.row_bytes(), bytes),
            tensors: self.tensors.clone(),
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        let table = match self.kind.group_format().codes {
            Codes::Integers => None,
            Codes::Table(table) => Some(table.values()),
        };
        self.each_part(row, from, values, |part, first, values| {
            let (codes, steps) = (part.codes(), part.steps());
            for (col, value) in (first..).zip(values) {
                let step = &steps[col / (PART / 2)];
                let integer = match table {
                    None => codes[col],
                    Some(table) => table[codes[col] as usize & 15],
                };
                // One rounding, since the products of factors and multiples are exact.
                let scaled = step.factor * f32::from(step.multiple) * f32::from(integer);
                *value = scaled - step.min_factor * f32::from(step.min_multiple);
            }
        });
    }
}

impl<'a> HostGroups<'a> for HostGguf<'a> {
    fn group_format(&self) -> GroupFormat {
        self.kind.group_format()
    }

    fn codes(&self, row: usize, from: usize, out: &mut [i8]) {
        self.each_part(row, from, out, |part, first, out| {
            out.copy_from_slice(&part.codes()[first..first + out.len()]);
        });
    }

    fn steps(&self, row: usize, from: usize, out: &mut [GroupStep]) {
        let Some(row) = self.row(row) else {
            return;
        };
        let group = self.kind.group_format().group;
        for (number, step) in out.iter_mut().enumerate() {
            let col = from + number * group;
            if self.skipped + col < row.len() / self.kind.bytes() * self.kind.elements() {
                let (part, first) = self.part(row, col);
                *step = part.steps()[first / (PART / 2)];
            }
        }
    }
}

#[cfg(test)]
mod tests;
