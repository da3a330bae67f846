//! Tensors found in a checkpoint. Matrices are places in the files and are not copied.

use std::marker::PhantomData;

use lockstep_backend::{CheckpointDtype, HostMatrix, MatrixRole};

use super::{Taken, Weights};
use crate::{
    ModelError,
    blocks::parts::{Convert, Form, Listed, MatrixPart, Tensors, VectorPart},
};

/// Tensors in the files of a checkpoint that lives for `'a`. Vectors are read already,
/// matrices are not.
pub(crate) struct Found<'a>(PhantomData<&'a ()>);

impl<'a> Form for Found<'a> {
    type Matrix = FoundMatrix<'a>;
    type Vector = Vec<f32>;
}

/// A rank's part of a matrix in the files.
#[derive(Debug)]
pub(crate) struct FoundMatrix<'a> {
    pub taken: Taken<'a>,
    pub role: MatrixRole,
}

impl Weights {
    /// Finds all of `tensors`, so that a missing or misshapen tensor is known before anything
    /// is packed.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`], [`ModelError::MixedDTypes`].
    pub(crate) fn locate<T: Tensors<Listed>>(
        &self,
        tensors: &T,
    ) -> Result<T::In<Found<'_>>, ModelError> {
        tensors.convert(&mut Locate(self))
    }
}

/// Returns the bytes of all matrices on the host.
pub(crate) fn matrix_bytes<'a>(tensors: &impl Tensors<Found<'a>>) -> u64 {
    let mut bytes = 0;
    tensors.each(|matrix| bytes += matrix.taken.bytes(), |_| {});
    bytes
}

struct Locate<'a>(&'a Weights);

impl<'a> Convert<Listed> for Locate<'a> {
    type To = Found<'a>;
    type Error = ModelError;

    fn matrix(&mut self, part: &MatrixPart) -> Result<FoundMatrix<'a>, ModelError> {
        let Self(weights) = *self;
        let mut all: Option<Taken<'a>> = None;
        for tensor in &part.tensors {
            let table = weights.table(&tensor.name, tensor.rows, part.width)?;
            let taken = table.take(&tensor.taken, &part.columns);
            match &mut all {
                None => all = Some(taken),
                Some(all) => {
                    if !all.append(taken) {
                        return Err(ModelError::MixedDTypes {
                            file: weights.file_of(&tensor.name),
                            tensor: tensor.name.clone(),
                            sibling: part.tensors[0].name.clone(),
                        });
                    }
                }
            }
        }
        let none = || {
            Taken::File(HostMatrix {
                cols: part.columns.len(),
                dtype: CheckpointDtype::F32,
                blocks: Vec::new(),
            })
        };
        Ok(FoundMatrix {
            taken: all.unwrap_or_else(none),
            role: part.role,
        })
    }

    fn vector(&mut self, part: &VectorPart) -> Result<Vec<f32>, ModelError> {
        let mut values = Vec::with_capacity(part.len());
        for tensor in &part.tensors {
            let whole = self.0.floats(&tensor.name, tensor.rows)?;
            for range in &tensor.taken {
                values.extend_from_slice(&whole[range.clone()]);
            }
        }
        Ok(values)
    }
}
