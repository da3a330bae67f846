//! How many rows an operation has.

use bytemuck::{Pod, Zeroable};

use crate::memory::Buffer;

/// How many rows there are. A launch has blocks for `most`; those that are not
/// there, as device memory says when it runs, stay as they are.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    most: usize,
    count: Option<(&'a Buffer<u32>, usize)>,
}

impl<'a> Rows<'a> {
    /// Just so many.
    pub fn fixed(rows: usize) -> Self {
        Self {
            most: rows,
            count: None,
        }
    }

    /// As many as word `word` of `counts` says, at most `most`.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn counted(most: usize, counts: &'a Buffer<u32>, word: usize) -> Self {
        assert!(word < counts.len(), "the count lies in the buffer");
        Self {
            most,
            count: Some((counts, word)),
        }
    }

    /// At most so many.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether device memory says how many there are.
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

/// Blocks of `each` that cover `all`.
pub(crate) fn blocks(all: usize, each: usize) -> u32 {
    all.div_ceil(each) as u32
}
