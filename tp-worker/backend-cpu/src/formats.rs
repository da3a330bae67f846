//! Formats of weights, in the order in which kernels read them. Each format's file packs a
//! panel of 32 columns and reads a column back. Tiles of kernels are in [`crate::gemm`].

mod decode;
mod float;
mod int4;
mod int8;
mod matrix;
mod saved;
mod step;

use lockstep_backend::{HostFloats, WeightFormat};
use lockstep_types::Dtype;

use crate::gemm::{self, Element, PANEL, Tiles};
use crate::isa::Isa;
use crate::quantize::GROUP;

pub use matrix::CpuMatrix;

/// Packed form of a weight matrix. A kernel reads it in steps; each variant names the content of
/// a step for one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packed {
    /// Values, rounded to the type that products compute in.
    Float(Element),
    /// A group of 8-bit integers and its scale.
    Int8,
    /// A group of 4-bit integers, its scale and the multipliers of the scale.
    Int4,
}

impl Packed {
    /// Returns the packed form of matrices in `format`, for products that compute in `dtype`.
    pub(crate) fn of(dtype: Dtype, format: WeightFormat) -> Self {
        match format {
            WeightFormat::Float => Self::Float(Element::of(dtype)),
            WeightFormat::Float32 => Self::Float(Element::F32),
            WeightFormat::Int8 => Self::Int8,
            WeightFormat::Int4 => Self::Int4,
        }
    }

    /// Name in the keys of packed files.
    fn name(self) -> &'static str {
        match self {
            Self::Float(Element::F32) => "f32",
            Self::Float(Element::Bf16) => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// 4-byte words of a matrix `[rows, cols]`.
    pub(crate) fn words(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(PANEL) * self.steps(cols) * self.step_words()
    }

    /// Steps of a row of `k` values.
    pub(crate) fn steps(self, k: usize) -> usize {
        match self {
            Self::Float(element) => element.steps(k),
            Self::Int8 | Self::Int4 => k.div_ceil(GROUP),
        }
    }

    /// 4-byte words of one step of a panel.
    pub(crate) fn step_words(self) -> usize {
        match self {
            Self::Float(element) => element.step_words(),
            Self::Int8 => gemm::INT8_WORDS,
            Self::Int4 => gemm::INT4_WORDS,
        }
    }

    /// The tiles that multiply `rows` rows by such a matrix on a machine.
    pub(crate) fn tiles(self, isa: Isa, rows: usize) -> &'static Tiles {
        match self {
            Self::Float(element) => gemm::select(isa, element),
            Self::Int8 => gemm::int8(isa, rows),
            Self::Int4 => gemm::int4(isa, rows),
        }
    }

    /// Packs panel `panel` of `matrix`.
    fn pack_panel(self, isa: Isa, matrix: &HostFloats<'_>, panel: usize, out: &mut [u32]) {
        match self {
            Self::Float(element) => float::pack_panel(isa, element, matrix, panel, out),
            Self::Int8 => int8::pack_panel(isa, matrix, panel, out),
            Self::Int4 => int4::pack_panel(isa, matrix, panel, out),
        }
    }

    /// Copies column `lane` of `panel` to `out`.
    fn read_row(self, panel: &[u32], lane: usize, out: &mut [f32]) {
        match self {
            Self::Float(element) => float::read_row(element, panel, lane, out),
            Self::Int8 => int8::read_row(panel, lane, out),
            Self::Int4 => int4::read_row(panel, lane, out),
        }
    }
}
