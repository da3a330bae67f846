//! Which rows an operation reads.

use bytemuck::{Pod, Zeroable};

use crate::inputs::{Inputs, List};
use crate::memory::Buffer;

/// Which rows are read.
#[derive(Clone, Copy)]
pub enum Indices<'a> {
    /// Those that a list names.
    List(&'a Buffer<u32>),
    /// Those of the tokens whose logits a batch wants.
    Wanted(&'a Inputs),
}

impl Indices<'_> {
    /// How many the list has room for.
    pub(crate) fn room(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Wanted(inputs) => inputs.wanted().most(),
        }
    }
    pub(crate) fn parameter(&self) -> IndicesParameter {
        let (at, header) = match self {
            Self::List(list) => (list.address(), 0),
            Self::Wanted(inputs) => (inputs.address(), List::Wanted.header() as u32),
        };
        IndicesParameter { at, header, pad: 0 }
    }
}

/// `Indices` of `rows.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct IndicesParameter {
    at: u64,
    header: u32,
    pad: u32,
}

impl IndicesParameter {
    /// All rows in turn.
    pub(crate) const ALL: Self = Self {
        at: 0,
        header: 0,
        pad: 0,
    };
}
