//! Formats of experts that differ.

use lockstep_backend::{GroupFormat, MatrixShape, WeightFormat};
use lockstep_types::ModelConfig;

use crate::blocks::parts::MatrixPart;

/// Returns the shape of one of `matrices`, which differ in their formats alone: of one whose packed
/// inputs take most memory, since there is room for inputs of all. Where integers in groups meet
/// other formats, inputs of 32-bit floats take as much as any.
pub(super) fn widest(matrices: &[MatrixPart], model: &ModelConfig) -> Option<MatrixShape> {
    // Of integers in groups, bits of codes and numbers of groups decide.
    let width = |shape: &MatrixShape| match shape.format {
        WeightFormat::Float32 => (2, 0),
        WeightFormat::Fp8 { .. } => (1, 0),
        WeightFormat::Float | WeightFormat::Int8 | WeightFormat::Int4 | WeightFormat::Mxfp4 => {
            (0, 0)
        }
        WeightFormat::Groups(format) => {
            (usize::from(format.bits), GroupFormat::STEP / format.group)
        }
    };
    let shapes = || matrices.iter().map(|matrix| matrix.shape(model));
    let in_groups = |shape: MatrixShape| matches!(shape.format, WeightFormat::Groups(_));
    // The first one of the widest.
    let widest = shapes().rev().max_by_key(width)?;
    if shapes().any(in_groups) && !shapes().all(in_groups) {
        return Some(MatrixShape {
            format: WeightFormat::Float32,
            ..widest
        });
    }
    Some(widest)
}
