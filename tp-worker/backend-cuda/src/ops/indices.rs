//! Selection of the rows that an operation reads or writes.

use bytemuck::{Pod, Zeroable};

use crate::passes::{Inputs, List};
use crate::runtime::Buffer;

/// Rows that an operation reads or writes.
#[derive(Clone, Copy)]
pub enum Indices<'a> {
    /// Rows that the list names, from this entry on.
    List(&'a Buffer<u32>, usize),
    /// Rows of the tokens whose logits the batch wants, from this one on.
    Wanted(&'a Inputs, usize),
    /// Rows that came with the first pass of chains, one for each of its tokens.
    Sources(&'a Inputs),
}

impl Indices<'_> {
    /// Largest number of rows.
    pub(crate) fn room(&self) -> usize {
        match self {
            Self::List(list, first) => list.len().saturating_sub(*first),
            Self::Wanted(inputs, first) => inputs.wanted().most().saturating_sub(*first),
            Self::Sources(inputs) => inputs.tokens().most(),
        }
    }
    pub(crate) fn parameter(&self) -> IndicesParameter {
        let (at, header, first) = match self {
            Self::List(list, first) => (list.address(), 0, *first),
            Self::Wanted(inputs, first) => (inputs.address(), List::Wanted.header(), *first),
            Self::Sources(inputs) => (inputs.address(), List::Sources.header(), 0),
        };
        IndicesParameter {
            at,
            header: header as u32,
            first: first as u32,
        }
    }
}

/// `Indices` of `rows.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct IndicesParameter {
    at: u64,
    header: u32,
    first: u32,
}

impl IndicesParameter {
    /// All rows, in their order.
    pub(crate) const ALL: Self = Self {
        at: 0,
        header: 0,
        first: 0,
    };
}
