//! Random tensors in place of a checkpoint.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use lockstep_backend::{HostMatrix, RandomBlock, RandomMatrix, RandomNumbers};
use lockstep_types::NormKind;

use super::Source;
use crate::{ModelError, blocks::parts::TensorRows};

/// Standard deviation of biases, and of norms around their mean.
const VECTORS: f32 = 0.02;

/// Made-up tensors for a model in some folder. They follow from their names alone.
#[derive(Debug)]
pub(super) struct Dummy {
    folder: PathBuf,
    /// Mean of the norms' weights, as a checkpoint stores them.
    norms: f32,
}

impl Dummy {
    /// Makes tensors up for the model in `folder`, whose norms are of `kind`.
    pub fn new(folder: &Path, kind: NormKind) -> Self {
        Self {
            folder: folder.to_owned(),
            norms: match kind {
                NormKind::RmsUnitOffset => 0.0,
                NormKind::Rms | NormKind::Layer => 1.0,
            },
        }
    }
}

impl Source for Dummy {
    /// Returns false: optional tensors are left out.
    fn contains(&self, _: &str) -> bool {
        false
    }

    fn matrix(
        &self,
        tensor: &TensorRows,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        let numbers = matrix(&tensor.name, width);
        let block = |rows: &Range<usize>| RandomBlock {
            numbers,
            first: rows.start * width + columns.start,
            stride: width * tensor.step,
            rows: rows.len().div_ceil(tensor.step),
        };
        Ok(HostMatrix::Random(RandomMatrix {
            cols: columns.len(),
            blocks: tensor.taken.iter().map(block).collect(),
        }))
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let len = shape.iter().product();
        let mean = match name.ends_with("norm.weight") {
            true => self.norms,
            false => 0.0,
        };
        Ok(vector(name, len, mean))
    }

    fn integers(&self, _: &str, len: usize) -> Result<Vec<i64>, ModelError> {
        Ok(vec![0; len])
    }

    fn file_of(&self, _: &str) -> PathBuf {
        self.folder.clone()
    }
}

/// Returns the random numbers of the matrix `name` with `inputs` columns. Their scale keeps
/// products about as large as the input, and logits about as large as one.
fn matrix(name: &str, inputs: usize) -> RandomNumbers {
    RandomNumbers::new(key(name), 1.0 / (inputs.max(1) as f32).sqrt())
}

/// Returns the random vector `name`, about `mean`.
fn vector(name: &str, len: usize, mean: f32) -> Vec<f32> {
    let numbers = RandomNumbers::new(key(name), VECTORS);
    (0..len)
        .map(|index| mean + numbers.at(index).to_f32())
        .collect()
}

/// Returns a number for the tensor `name` that is equal in all programs.
fn key(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use lockstep_types::NormKind;

    use super::{Dummy, Range, Source as _};
    use crate::{blocks::parts::VectorPart, checkpoint::found::vector};

    /// Weights that a checkpoint stores as distances from one are about one too.
    #[test]
    fn norms_are_about_one_whatever_their_kind() {
        for kind in [NormKind::Rms, NormKind::RmsUnitOffset, NormKind::Layer] {
            let dummy = Dummy::new("nowhere".as_ref(), kind);
            let part = VectorPart::norm("model.norm", kind, 64, vec![Range { start: 0, end: 64 }]);
            let values = vector(&dummy, &part).unwrap();
            assert!(
                values.iter().all(|value| (value - 1.0).abs() < 0.2),
                "{kind:?}"
            );
            let biases = dummy.vector("model.norm.bias", &[64]).unwrap();
            assert!(biases.iter().all(|value| value.abs() < 0.2), "{kind:?}");
        }
    }
}
