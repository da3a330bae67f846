//! Sums in the form that products leave them to the next operation.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use crate::runtime::Buffer;
use crate::tensors::{Element, Floats};

/// Sums `[rows, width]`. They may lie in parts `[parts, rows, width]`, which the reader adds in
/// their order; behind the parts it adds a bias `[width]`, if there is one.
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
    /// Sums in `parts` parts of `len` elements each, one behind the other at `address`.
    ///
    /// # Safety
    /// The parts lie there as long as `'a`.
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

    /// Sums in `parts` parts, one behind the other in `floats`, without a bias.
    ///
    /// # Panics
    /// Panics if the parts are not equal, or their type is not a 32-bit float.
    pub fn of_parts(floats: &'a Floats, parts: usize) -> Self {
        let all = Self::from(floats);
        assert!(all.len.is_multiple_of(parts), "parts have one size");
        Self {
            parts,
            len: all.len / parts,
            ..all
        }
    }

    /// Sums in one part, with a bias to be added.
    pub(crate) fn with_bias(sums: &'a Floats, bias: Option<&'a Buffer<f32>>) -> Self {
        Self {
            bias,
            ..Self::from(sums)
        }
    }

    /// Sums in one part, which begins at element `first` of `sums`.
    ///
    /// # Panics
    /// Panics if there are fewer elements, or their type is not a 32-bit float.
    pub(crate) fn from_place(sums: &'a Floats, first: usize) -> Self {
        let all = Self::from(sums);
        assert!(first <= all.len, "sums begin inside of all");
        Self {
            address: all.address + (first * Element::F32.bytes()) as u64,
            len: all.len - first,
            ..all
        }
    }

    /// Returns these sums, borrowed for another time, with `bias` as their bias.
    ///
    /// # Safety
    /// The sums lie there as long as `'b`.
    pub(crate) unsafe fn borrowed<'b>(self, bias: Option<&'b Buffer<f32>>) -> Sums<'b> {
        Sums {
            address: self.address,
            parts: self.parts,
            len: self.len,
            bias,
            of: PhantomData,
        }
    }

    /// # Panics
    /// Panics if there are fewer than `rows` rows of `width`, or a bias of another width.
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

/// Sums, and space of their size in which they may lie. Who reads a value may write its place.
pub struct SumsWithSpace<'a> {
    pub(crate) sums: Sums<'a>,
    pub(crate) space: &'a mut Floats,
}

impl<'a> From<&'a mut Floats> for SumsWithSpace<'a> {
    /// # Panics
    /// Panics if the type is not a 32-bit float.
    fn from(space: &'a mut Floats) -> Self {
        // SAFETY: the sums are `space` itself, which is borrowed as long.
        let sums = unsafe { Sums::from(&*space).borrowed(None) };
        Self { sums, space }
    }
}

impl<'a> From<&'a Floats> for Sums<'a> {
    /// # Panics
    /// Panics if the type is not a 32-bit float.
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
    /// No sums: nothing to add.
    pub(crate) const NONE: Self = Self {
        parts: 0,
        bias: 0,
        stride: 0,
        count: 0,
        pad: 0,
    };
}
