//! Matrices of 8-bit floats: a tensor of codes, and beside it a tensor of scales.

use std::{ops::Range, sync::Arc};

use lockstep_backend::{
    CheckpointDtype, E4m3, E8m0, HostBlock, HostFp8, HostMatrix, HostTurnedFp8, ScaleGrid,
    ScalePart,
};
use lockstep_files::weights::Dtype;

use super::{Safetensors, Source as _};
use crate::{ModelError, blocks::parts::TensorRows};

/// Endings of the names of scales, behind the name of their weight. All of them multiply.
const ENDINGS: [&str; 2] = ["_scale_inv", "_scale"];
/// Names below a module of the tensors that are read beside its 8-bit floats, and of scales of
/// inputs and caches, which are not used.
const BESIDE: [&str; 11] = [
    "weight",
    "weight_scale",
    "weight_scale_inv",
    "bias",
    "input_scale",
    "activation_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
    "q_scale",
    "output_scale",
];

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
        self.check_beside(&tensor.name, &BESIDE)?;
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

    /// Checks that all tensors of the module that `weight` is the weight of are `known`: others
    /// may say that its values are something else.
    ///
    /// # Errors
    /// [`ModelError::Beside`].
    pub(super) fn check_beside(&self, weight: &str, known: &[&str]) -> Result<(), ModelError> {
        let Some(module) = weight.strip_suffix("weight").filter(|m| m.ends_with('.')) else {
            return Ok(());
        };
        let below = self.tensors.range(module.to_owned()..);
        let names = below.map_while(|(name, _)| Some((name, name.strip_prefix(module)?)));
        let mut own = names.filter(|(_, own)| !own.contains('.') && !known.contains(own));
        match own.next() {
            None => Ok(()),
            Some((name, _)) => Err(self.beside(name, weight)),
        }
    }

    /// Checks that no scales lie beside floats of 16 or 32 bits.
    ///
    /// # Errors
    /// [`ModelError::Beside`].
    pub(super) fn check_floats(&self, weight: &str) -> Result<(), ModelError> {
        let scales = ENDINGS.map(|ending| format!("{weight}{ending}"));
        match scales.iter().find(|name| self.tensors.contains_key(*name)) {
            None => Ok(()),
            Some(name) => Err(self.beside(name, weight)),
        }
    }

    fn beside(&self, tensor: &str, weight: &str) -> ModelError {
        ModelError::Beside {
            file: self.file_of(tensor),
            tensor: tensor.to_owned(),
            weight: weight.to_owned(),
        }
    }

    /// Reads the scales of a tensor: one for each block, for each row, or for the tensor.
    fn scales(&self, tensor: &str, rows: usize, width: usize) -> Result<ScaleGrid, ModelError> {
        let names = ENDINGS.map(|ending| format!("{tensor}{ending}"));
        let stored = |name: &String| self.tensors.get(name).map(|entry| entry.shape.clone());
        let name = match [stored(&names[0]), stored(&names[1])] {
            [Some(_), Some(_)] => return Err(self.beside(&names[0], tensor)),
            [None, Some(_)] => &names[1],
            _ => &names[0],
        };
        let stored = stored(name);
        let is_rows = |shape: &Vec<usize>| {
            shape.iter().product::<usize>() == 1
                || matches!(shape[..], [all] | [all, 1] if all == rows)
        };
        let of_rows = stored.clone().filter(is_rows);
        let tensor = tensor.to_owned();
        if let Some([high, wide]) = self.block.filter(|_| !self.mixed || of_rows.is_none()) {
            let [down, across] = [rows.div_ceil(high), width.div_ceil(wide)];
            // The Model Optimizer stores a dimension for the rows and columns inside of a block.
            let apart = stored.filter(|shape| *shape == [down, 1, across, 1]);
            let values = self.scale_values(name, &apart.unwrap_or(vec![down, across]))?;
            return Ok(ScaleGrid {
                tensor,
                values,
                stride: across,
                rows: high,
                cols: wide,
            });
        }
        let values = self.scale_values(name, &of_rows.unwrap_or(vec![rows, 1]))?;
        let rows = if values.len() == 1 { usize::MAX } else { 1 };
        Ok(ScaleGrid {
            tensor,
            values,
            stride: 1,
            rows,
            cols: usize::MAX,
        })
    }

    /// Reads scales of any type as f32, which holds all of them exactly.
    ///
    /// # Errors
    /// [`ModelError::NotNumber`] if a scale, or a value with it, is no finite number.
    fn scale_values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let values = self.floats_of_scales(name, shape)?;
        let finite = |scale: &f32| (scale * E4m3::MOST).is_finite();
        match values.iter().all(finite) {
            true => Ok(values),
            false => Err(ModelError::NotNumber {
                file: self.file_of(name),
                tensor: name.to_owned(),
            }),
        }
    }

    fn floats_of_scales(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
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
