//! Stacks of matrices in MXFP4: a tensor of 4-bit floats, and one of exponents.

use std::ops::Range;

use lockstep_backend::{HostBlock, HostMatrix, HostMxfp4};
use lockstep_files::weights::Dtype;

use super::Safetensors;
use crate::{ModelError, blocks::parts::TensorRows};

impl Safetensors {
    /// Finds a part of a stack `[matrices, outputs, groups of inputs, bytes of a group]`.
    ///
    /// # Errors
    /// The errors of [`super::Source::matrix`], for floats and exponents.
    pub(super) fn mxfp4(
        &self,
        tensor: &TensorRows,
        outputs: usize,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        const GROUP: usize = HostMxfp4::GROUP;
        let of_row = width / GROUP;
        let shape = [tensor.rows / outputs, outputs, of_row];
        let [codes, exponents] = ["blocks", "scales"].map(|kind| {
            let name = format!("{}_{kind}", tensor.name);
            let shape = match kind {
                "blocks" => [&shape[..], &[HostMxfp4::GROUP_BYTES]].concat(),
                _ => shape.to_vec(),
            };
            let (entry, bytes) = self.find(&name, &shape)?;
            match entry.dtype {
                Dtype::U8 => Ok(bytes),
                other => Err(self.unserved(&name, other)),
            }
        });
        let (codes, exponents) = (codes?, exponents?);
        let first = columns.start / GROUP;
        let blocks = |bytes, group_bytes: usize| {
            let block = move |rows: &Range<usize>| HostBlock {
                bytes,
                offset: (rows.start * of_row + first) * group_bytes,
                stride: tensor.step * of_row * group_bytes,
                rows: rows.len().div_ceil(tensor.step),
            };
            tensor.taken.iter().map(block).collect()
        };
        Ok(HostMatrix::Mxfp4(HostMxfp4 {
            cols: columns.len(),
            skipped: columns.start % GROUP,
            blocks: blocks(codes, HostMxfp4::GROUP_BYTES),
            exponents: blocks(exponents, 1),
        }))
    }
}
