//! Tensors of GGUF files: blocks, and rows that lie in another order.

use std::{ops::Range, sync::Arc};

use lockstep_backend::{HostBlock, HostGguf, HostMatrix};
use lockstep_files::{TensorType, weights::Dtype};
use lockstep_types::BlockType;

use super::Safetensors;
use crate::{ModelError, blocks::parts::TensorRows};

/// Rows of a file that are rows of a matrix, one below the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowRun {
    /// First row in the file.
    pub first: usize,
    /// Rows of the file from one to the next.
    pub step: usize,
    /// Number of rows.
    pub count: usize,
}

/// Returns the row of the file that is row `row` of a tensor whose heads of `head` rows have their
/// halves in turn.
fn interleaved(row: usize, head: usize) -> usize {
    let (number, own) = (row / head, row % head);
    let half = head / 2;
    number * head + own % half * 2 + own / half
}

impl Safetensors {
    /// Returns the rows of the file that `tensor` takes, in their order.
    pub(super) fn runs(&self, tensor: &TensorRows) -> Vec<RowRun> {
        let entry = self.tensors.get(&tensor.name);
        let head = entry.and_then(|entry| entry.interleaved);
        let mut runs = Vec::new();
        for rows in &tensor.taken {
            let Some(head) = head else {
                runs.push(RowRun {
                    first: rows.start,
                    step: tensor.step,
                    count: rows.len().div_ceil(tensor.step),
                });
                continue;
            };
            let half = head / 2;
            let mut row = rows.start;
            while row < rows.end {
                // Rows of one half of a head lie two apart.
                let end = rows.end.min(row / half * half + half);
                let count = (end - row).div_ceil(tensor.step);
                runs.push(RowRun {
                    first: interleaved(row, head),
                    step: 2 * tensor.step,
                    count,
                });
                row += count * tensor.step;
            }
        }
        runs
    }

    /// Returns the values of a vector in the order of a matrix's rows.
    pub(super) fn in_order(&self, name: &str, values: Vec<f32>) -> Vec<f32> {
        match self.tensors.get(name).and_then(|entry| entry.interleaved) {
            None => values,
            Some(head) => {
                let rows = 0..values.len();
                rows.map(|row| values[interleaved(row, head)]).collect()
            }
        }
    }

    /// Finds a part of a matrix of blocks.
    ///
    /// # Errors
    /// The errors of [`super::Source::matrix`].
    pub(super) fn gguf(
        &self,
        tensor: &TensorRows,
        kind: TensorType,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        let unserved = || self.unserved(&tensor.name, Dtype::Blocks(kind));
        let kind = BlockType::named(kind.name).ok_or_else(unserved)?;
        if tensor.turned.is_some() {
            return Err(unserved());
        }
        let (_, bytes) = self.find(&tensor.name, &[tensor.rows, width])?;
        let row_bytes = width / kind.elements() * kind.bytes();
        let skipped = columns.start / kind.elements() * kind.bytes();
        let block = |run: RowRun| HostBlock {
            bytes,
            offset: run.first * row_bytes + skipped,
            stride: run.step * row_bytes,
            rows: run.count,
        };
        let blocks: Vec<_> = self.runs(tensor).into_iter().map(block).collect();
        let name: Arc<str> = tensor.name.as_str().into();
        Ok(HostMatrix::Gguf(HostGguf {
            kind,
            cols: columns.len(),
            skipped: columns.start % kind.elements(),
            tensors: vec![name; blocks.len()],
            blocks,
        }))
    }
}
