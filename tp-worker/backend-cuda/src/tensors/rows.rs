//! Number of rows of an operation.

use bytemuck::{Pod, Zeroable};

use crate::runtime::Buffer;

/// Number of rows. A launch has blocks for `most` rows. The kernel reads the actual number from
/// device memory, and rows beyond it stay as they are.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    most: usize,
    count: Option<(&'a Buffer<u32>, usize)>,
}

impl<'a> Rows<'a> {
    /// Exactly `rows` rows.
    pub fn fixed(rows: usize) -> Self {
        Self {
            most: rows,
            count: None,
        }
    }

    /// The number of rows in word `word` of `counts`, at most `most`.
    ///
    /// # Panics
    /// Panics if there is no such word.
    pub fn counted(most: usize, counts: &'a Buffer<u32>, word: usize) -> Self {
        assert!(word < counts.len(), "the count lies in the buffer");
        Self {
            most,
            count: Some((counts, word)),
        }
    }

    /// Largest number of rows.
    pub fn most(&self) -> usize {
        self.most
    }

    /// True if device memory has the number of rows.
    pub(crate) fn are_counted(&self) -> bool {
        self.count.is_some()
    }

    pub(crate) fn parameter(&self) -> RowsParameter {
        let address = |(counts, word): (&Buffer<u32>, usize)| counts.address() + 4 * word as u64;
        RowsParameter {
            count: self.count.map_or(0, address),
            most: self.most as u32,
            pad: 0,
        }
    }
}

/// `Rows` of `device.cuh`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RowsParameter {
    count: u64,
    most: u32,
    pad: u32,
}

impl RowsParameter {
    /// Largest number of rows.
    pub(crate) fn most(&self) -> usize {
        self.most as usize
    }
}

/// Number of blocks of `each` elements that cover `all`.
pub(crate) fn blocks(all: usize, each: usize) -> u32 {
    all.div_ceil(each) as u32
}
