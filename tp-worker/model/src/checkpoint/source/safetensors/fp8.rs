//! Matrices of 8-bit floats: a tensor of codes, and beside it a tensor of scales.

use std::{ops::Range, sync::Arc};

use lockstep_backend::{
    CheckpointDtype, E8m0, HostBlock, HostFp8, HostMatrix, HostTurnedFp8, ScaleGrid, ScalePart,
};
use lockstep_files::weights::Dtype;

use super::Safetensors;
use crate::{ModelError, blocks::parts::TensorRows};

/// Endings of the names of scales, behind the name of their weight. All of them multiply.
const ENDINGS: [&str; 2] = ["_scale_inv", "_scale"];

impl Safetensors {
    /// Finds a part of a matrix of 8-bit floats, and reads its scales.
    ///
    /// # Errors
    /// The errors of [`super::Source::matrix`], for codes and scales; [`ModelError::Read`].
    pub(super) fn fp8(
        &self,
        tensor: &TensorRows,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        if let Some(outputs) = tensor.turned {
            return self.turned_fp8(tensor, outputs, width, columns);
        }
        let (_, bytes) = self.find(&tensor.name, &[tensor.rows, width])?;
        let whole = Arc::new(self.scales(&tensor.name, tensor.rows, width)?);
        let step = tensor.step;
        let block = |rows: &Range<usize>| HostBlock {
            bytes,
            offset: rows.start * width + columns.start,
            stride: step * width,
            rows: rows.len().div_ceil(step),
        };
        let scales = |rows: &Range<usize>| ScalePart {
            whole: Arc::clone(&whole),
            row: rows.start,
            col: columns.start,
            step,
        };
        Ok(HostMatrix::Fp8(HostFp8 {
            cols: columns.len(),
            blocks: tensor.taken.iter().map(block).collect(),
            scales: tensor.taken.iter().map(scales).collect(),
        }))
    }

    /// Finds a part of a matrix that lies turned around: of the rows `inputs` of a tensor
    /// `[width, outputs]`, those elements that `tensor` takes.
    fn turned_fp8(
        &self,
        tensor: &TensorRows,
        outputs: usize,
        width: usize,
        inputs: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        let taken = match tensor.taken.as_slice() {
            // Neither stacks nor parts of outputs lie so in any checkpoint.
            [taken] if tensor.step == 1 && tensor.rows == outputs => taken.clone(),
            _ => return Err(self.unserved(&tensor.name, Dtype::F8_E4M3)),
        };
        let rows = TensorRows::of(tensor.name.clone(), width, vec![inputs.clone()]);
        match self.fp8(&rows, outputs, &taken)? {
            HostMatrix::Fp8(stored) => Ok(HostMatrix::TurnedFp8(HostTurnedFp8 { stored })),
            other => Ok(other),
        }
    }

    /// Reads the scales of a tensor: one for each block, for each row, or for the tensor.
    fn scales(&self, tensor: &str, rows: usize, width: usize) -> Result<ScaleGrid, ModelError> {
        let names = ENDINGS.map(|ending| format!("{tensor}{ending}"));
        let found = names.iter().find(|name| self.tensors.contains_key(*name));
        let name = found.unwrap_or(&names[0]);
        if let Some([high, wide]) = self.block {
            let shape = [rows.div_ceil(high), width.div_ceil(wide)];
            return Ok(ScaleGrid {
                values: self.scale_values(name, &shape)?,
                stride: shape[1],
                rows: high,
                cols: wide,
            });
        }
        let stored = self.tensors.get(name).map(|entry| entry.shape.clone());
        let stored =
            stored.filter(|shape| shape.iter().product::<usize>() == 1 || *shape == [rows]);
        let shape = stored.unwrap_or(vec![rows, 1]);
        let values = self.scale_values(name, &shape)?;
        let rows = if values.len() == 1 { usize::MAX } else { 1 };
        Ok(ScaleGrid {
            values,
            stride: 1,
            rows,
            cols: usize::MAX,
        })
    }

    /// Reads scales of any type as f32, which holds all of them exactly.
    fn scale_values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let (entry, bytes) = self.find(name, shape)?;
        let bytes = self.bytes(bytes)?;
        let dtype = match entry.dtype {
            Dtype::F32 => CheckpointDtype::F32,
            Dtype::BF16 => CheckpointDtype::Bf16,
            Dtype::F16 => CheckpointDtype::F16,
            Dtype::F8_E8M0 => return Ok(bytes.iter().map(|code| E8m0(*code).value()).collect()),
            other => return Err(self.unserved(name, other)),
        };
        let mut values = vec![0.0; shape.iter().product()];
        dtype.decode(&bytes, &mut values);
        Ok(values)
    }
}
