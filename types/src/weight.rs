//! Formats of weight matrices on a device.

use crate::Quantization;

/// Use of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixRole {
    /// A projection inside a layer.
    Projection,
    /// One row per token of the vocabulary: embedding, output head or both.
    Vocabulary,
}

/// Format of one weight matrix on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// Floats of the type that the device multiplies in.
    Float,
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
}

impl MatrixRole {
    /// All roles.
    pub const ALL: [Self; 2] = [Self::Projection, Self::Vocabulary];
}

impl WeightFormat {
    /// Format of a matrix of `role` of floats in a model that is loaded with `quantization`. A
    /// table of tokens bears less rounding than a layer, so it has at least 8 bits.
    pub fn of(quantization: Quantization, role: MatrixRole) -> Self {
        match (quantization, role) {
            (Quantization::None, _) => Self::Float,
            (Quantization::Int4, MatrixRole::Projection) => Self::Int4,
            (Quantization::Int8, _) | (Quantization::Int4, MatrixRole::Vocabulary) => Self::Int8,
        }
    }
}
