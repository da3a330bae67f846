//! Tensors found in a model's source. Matrices are places there and are not copied.

use std::marker::PhantomData;

use lockstep_backend::{CheckpointDtype, HostFloats, HostMatrix, WeightFormat};
use lockstep_types::ModelConfig;

use super::source::Source;
use crate::{
    ModelError,
    blocks::parts::{Convert, Form, Listed, MatrixPart, Tensors, VectorPart},
};

/// Tensors in a source that lives for `'a`. Vectors are read already, matrices are not.
pub(crate) struct Found<'a>(PhantomData<&'a ()>);

impl<'a> Form for Found<'a> {
    type Matrix = FoundMatrix<'a>;
    type Vector = Vec<f32>;
}

/// A rank's part of a matrix in a source.
#[derive(Debug)]
pub(crate) struct FoundMatrix<'a> {
    pub taken: HostMatrix<'a>,
    /// Format of the matrix on the device.
    pub format: WeightFormat,
}

/// Finds all of `tensors` in `source`, so that a missing or misshapen tensor is known before
/// anything is packed. They are tensors of `model`.
///
/// # Errors
/// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
/// [`ModelError::UnsupportedDType`], [`ModelError::Beside`], [`ModelError::NotNumber`] for a scale.
pub(crate) fn locate<'a, T: Tensors<Listed>>(
    source: &'a dyn Source,
    tensors: &T,
    model: &ModelConfig,
) -> Result<T::In<Found<'a>>, ModelError> {
    tensors.convert(&mut Locate { source, model })
}

/// Returns the bytes of all matrices on the host.
pub(crate) fn matrix_bytes<'a>(tensors: &impl Tensors<Found<'a>>) -> u64 {
    let mut bytes = 0;
    tensors.each(|matrix| bytes += matrix.taken.bytes(), |_| {});
    bytes
}

/// Finds single tensors of a model in a source.
pub(super) struct Locate<'a, 'm> {
    pub(super) source: &'a dyn Source,
    pub(super) model: &'m ModelConfig,
}

impl<'a> Convert<Listed> for Locate<'a, '_> {
    type To = Found<'a>;
    type Error = ModelError;

    fn matrix(&mut self, part: &MatrixPart) -> Result<FoundMatrix<'a>, ModelError> {
        let mut all: Option<HostMatrix<'a>> = None;
        for tensor in &part.tensors {
            let taken = self.source.matrix(tensor, part.width, &part.columns)?;
            match &mut all {
                None => all = Some(taken),
                Some(all) => all.append(taken),
            }
        }
        let none = || {
            HostMatrix::Floats(HostFloats {
                cols: part.columns.len(),
                dtype: CheckpointDtype::F32,
                blocks: Vec::new(),
            })
        };
        let (taken, format) = (all.unwrap_or_else(none), part.format(self.model));
        if let (Some((expected, found)), Some(tensor)) =
            (misfit(&taken, format), part.tensors.first())
        {
            return Err(ModelError::NotRounded {
                file: self.source.file_of(&tensor.name),
                tensor: tensor.name.clone(),
                expected,
                found,
            });
        }
        Ok(FoundMatrix { taken, format })
    }

    fn vector(&mut self, part: &VectorPart) -> Result<Vec<f32>, ModelError> {
        vector(self.source, part)
    }
}

/// Returns the form that a checkpoint was expected to hold a matrix of `format` in, and the one in
/// which it has some of its rows; `None` if it is as expected. Nothing is rounded that the
/// checkpoint was expected to hold rounded.
fn misfit(matrix: &HostMatrix<'_>, format: WeightFormat) -> Option<(&'static str, String)> {
    let expected = match format {
        WeightFormat::Fp8 { .. } => "F8_E4M3",
        WeightFormat::Mxfp4 => "MXFP4",
        WeightFormat::Groups(_) => "integers in groups",
        WeightFormat::Float
        | WeightFormat::Float32
        | WeightFormat::Dequantized
        | WeightFormat::Int8
        | WeightFormat::Int4 => return None,
    };
    if let Some(found) = floats(matrix) {
        return Some((expected, format!("{found:?}")));
    }
    let stored = matrix.groups().map(|groups| groups.group_format());
    match (format, stored) {
        (WeightFormat::Groups(layout), Some(stored)) if !layout.holds(&stored) => {
            Some((expected, format!("{stored:?}")))
        }
        _ => None,
    }
}

/// Returns the type of floats of a matrix that is not rounded, or has rows that are not.
fn floats(matrix: &HostMatrix<'_>) -> Option<CheckpointDtype> {
    match matrix {
        HostMatrix::Floats(floats) => Some(floats.dtype),
        HostMatrix::Turned(floats) => Some(floats.dtype),
        HostMatrix::Joined(joined) => joined.parts.iter().find_map(floats),
        HostMatrix::Fp8(_)
        | HostMatrix::TurnedFp8(_)
        | HostMatrix::Integers(_)
        | HostMatrix::Mxfp4(_)
        | HostMatrix::Gguf(_)
        | HostMatrix::Random(_) => None,
    }
}

/// Reads a rank's part of a vector.
///
/// # Errors
/// The errors of [`Source::vector`].
pub(crate) fn vector(source: &dyn Source, part: &VectorPart) -> Result<Vec<f32>, ModelError> {
    // It grows with what is found: sizes of a damaged configuration are beyond all memory.
    let mut values = Vec::new();
    for tensor in &part.tensors {
        let shape = match part.stack {
            1 => vec![tensor.rows],
            stack => vec![stack, tensor.rows / stack],
        };
        let whole = source.vector(&tensor.name, &shape)?;
        for range in &tensor.taken {
            values.extend(whole[range.clone()].iter().step_by(tensor.step));
        }
    }
    if part.plus_one {
        values.iter_mut().for_each(|value| *value += 1.0);
    }
    values.extend(std::iter::repeat_n(1.0, part.ones));
    if part.over != 1.0 {
        values.iter_mut().for_each(|value| *value /= part.over);
    }
    Ok(values)
}
