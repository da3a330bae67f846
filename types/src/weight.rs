//! Formats of weight matrices on a device.

mod groups;

pub use groups::{CodeTable, Codes, FactorType, GroupFormat, Minimum};

use crate::Quantization;

/// Use of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixRole {
    /// A projection inside a layer.
    Projection,
    /// One row per token of the vocabulary: embedding, output head or both.
    Vocabulary,
    /// One row per expert of a mixture: its product with a row says which experts the row goes
    /// through.
    Router,
}

/// Format of one weight matrix on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// Floats of the type that the device multiplies in.
    Float,
    /// 32-bit floats, multiplied with inputs that are not rounded.
    Float32,
    /// 8-bit integers, with a 16-bit scale for every 128 values of a row.
    Int8,
    /// 4-bit integers, with a 5-bit multiplier for every 32 values of a row and a 12-bit scale
    /// for every 128.
    Int4,
    /// 8-bit floats (e4m3) as a checkpoint has them, with a 32-bit scale for every `group`
    /// values of a row.
    Fp8 {
        /// Values of a row that share a scale: a power of two from 4 to 128.
        group: usize,
    },
    /// 4-bit floats (e2m1) as a checkpoint has them, with an 8-bit exponent (e8m0) for every 32
    /// values of a row.
    Mxfp4,
    /// Integers as a checkpoint has them, with a scale for every few values of a row.
    Groups(GroupFormat),
}

impl MatrixRole {
    /// Roles of the matrices that [`Quantization`] rounds, and that every model has.
    pub const ROUNDED: [Self; 2] = [Self::Projection, Self::Vocabulary];
}

impl WeightFormat {
    /// Format of a matrix of `role` of floats in a model that is loaded with `quantization`. A
    /// table of tokens bears less rounding than a layer, so it has at least 8 bits. A router is
    /// never rounded: a small error would send a row to another expert.
    pub fn of(quantization: Quantization, role: MatrixRole) -> Self {
        match (quantization, role) {
            (_, MatrixRole::Router) => Self::Float32,
            (Quantization::None, _) => Self::Float,
            (Quantization::Int4, MatrixRole::Projection) => Self::Int4,
            (Quantization::Int8, _) | (Quantization::Int4, MatrixRole::Vocabulary) => Self::Int8,
        }
    }
}
