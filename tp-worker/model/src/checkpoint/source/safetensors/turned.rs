//! Stacks of matrices that lie turned around: inputs before outputs.

use std::ops::Range;

use lockstep_backend::{HostBlock, HostMatrix, HostTurned, Outputs};

use super::Safetensors;
use crate::{ModelError, blocks::parts::TensorRows};

impl Safetensors {
    /// Finds a part of one matrix of a stack `[matrices, width, outputs]`.
    ///
    /// # Errors
    /// The errors of [`super::Source::matrix`].
    pub(super) fn turned(
        &self,
        tensor: &TensorRows,
        outputs: usize,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        // A matrix that is no stack has two dimensions.
        let shape = match tensor.rows / outputs {
            1 => vec![width, outputs],
            matrices => vec![matrices, width, outputs],
        };
        let whole = self.tensor(&tensor.name, &shape)?;
        let first = tensor.taken.iter().map(|rows| rows.start).min();
        let (first, end) = (
            first.unwrap_or(0),
            tensor.taken.iter().map(|rows| rows.end).max(),
        );
        let (matrix, size) = (first / outputs, whole.dtype.bytes());
        let row = matrix * width + columns.start;
        let taken = |rows: &Range<usize>| Outputs {
            first: rows.start - first,
            step: tensor.step,
            count: rows.len().div_ceil(tensor.step),
        };
        Ok(HostMatrix::Turned(HostTurned {
            dtype: whole.dtype,
            inputs: HostBlock {
                bytes: whole.bytes,
                offset: (row * outputs + first % outputs) * size,
                stride: outputs * size,
                rows: columns.len(),
            },
            width: end.map_or(0, |end| end - first),
            outputs: tensor.taken.iter().map(taken).collect(),
        }))
    }
}
