//! Random tensors in place of a checkpoint.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use lockstep_backend::{HostMatrix, RandomBlock, RandomMatrix, RandomNumbers};

use super::Source;
use crate::{ModelError, blocks::parts::TensorRows};

/// Standard deviation of biases, and of norms around one.
const VECTORS: f32 = 0.02;

/// Made-up tensors for a model in some folder. They follow from their names alone.
#[derive(Debug)]
pub(super) struct Dummy {
    folder: PathBuf,
}

impl Dummy {
    /// Makes tensors up for the model in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
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
            stride: width,
            rows: rows.len(),
        };
        Ok(HostMatrix::Random(RandomMatrix {
            cols: columns.len(),
            blocks: tensor.taken.iter().map(block).collect(),
        }))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        Ok(vector(name, len))
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

/// Returns the random vector `name`. Weights of norms are about one, other vectors about
/// zero.
fn vector(name: &str, len: usize) -> Vec<f32> {
    let numbers = RandomNumbers::new(key(name), VECTORS);
    let mean = if name.ends_with("norm.weight") {
        1.0
    } else {
        0.0
    };
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
