//! Sums as products leave them to whoever reads them next.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use crate::floats::{Element, Floats};
use crate::memory::Buffer;

/// Sums `[rows, width]`, perhaps in parts `[parts, rows, width]` that are added
/// in their order where they are read, and behind them a bias `[width]`.
#[derive(Clone, Copy)]
pub struct Sums<'a> {
    address: u64,
    parts: usize,
    /// Elements of a part.
    len: usize,
    bias: Option<&'a Buffer<f32>>,
    of: PhantomData<&'a Floats>,
}

impl<'a> Sums<'a> {
    /// `parts` parts of `len` elements each, one behind the other at `address`.
    ///
    /// # Safety
    /// They lie there as long as `'a`.
    pub(crate) unsafe fn in_parts(
        address: u64,
        parts: usize,
        len: usize,
        bias: Option<&'a Buffer<f32>>,
    ) -> Self {
        Self {
            address,
            parts,
            len,
            bias,
            of: PhantomData,
        }
    }

    /// One part, and a bias on top.
    pub(crate) fn with_bias(sums: &'a Floats, bias: Option<&'a Buffer<f32>>) -> Self {
        Self {
            bias,
            ..Self::from(sums)
        }
    }

    /// One part, which begins at place `first` of `sums`.
    ///
    /// # Panics
    /// If there are fewer, or these are no 32-bit floats.
    pub(crate) fn from_place(sums: &'a Floats, first: usize) -> Self {
        let all = Self::from(sums);
        assert!(first <= all.len, "sums begin inside of all");
        Self {
            address: all.address + (first * Element::F32.bytes()) as u64,
            len: all.len - first,
            ..all
        }
    }

    /// # Panics
    /// If there are fewer than `rows` rows of `width`, or no bias as wide.
    pub(crate) fn expect(&self, rows: usize, width: usize, what: &str) {
        let bias = self.bias.is_none_or(|bias| bias.len() == width);
        assert!(bias && self.len >= rows * width, "{what} has other sizes");
    }

    pub(crate) fn parameter(&self) -> SumsParameter {
        SumsParameter {
            parts: self.address,
            bias: self.bias.map_or(0, Buffer::address),
            stride: self.len as u64,
            count: self.parts as u32,
            pad: 0,
        }
    }
}

impl<'a> From<&'a Floats> for Sums<'a> {
    /// # Panics
    /// If these are no 32-bit floats.
    fn from(sums: &'a Floats) -> Self {
        sums.expect(Element::F32, 0, "sums");
        Self {
            address: sums.address(),
            parts: 1,
            len: sums.len(),
            bias: None,
            of: PhantomData,
        }
    }
}

/// `Sums` of `sums.cuh`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SumsParameter {
    parts: u64,
    bias: u64,
    stride: u64,
    count: u32,
    pad: u32,
}

impl SumsParameter {
    /// There is nothing to add.
    pub(crate) const NONE: Self = Self {
        parts: 0,
        bias: 0,
        stride: 0,
        count: 0,
        pad: 0,
    };
}
