//! Sources of a model's tensors.

mod dummy;
mod safetensors;

use std::{
    fmt::Debug,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

use lockstep_backend::HostMatrix;
use lockstep_types::{LoadFormat, ModelConfig};

use crate::{ModelError, blocks::parts::TensorRows};
use dummy::Dummy;

pub use safetensors::{FileAccess, HostTensor, Safetensors};

/// Source of a model's tensors, by name. Finding a matrix reads only its description. Its bytes
/// are fetched when the matrix is loaded, and released after that.
pub(crate) trait Source: Debug {
    /// Returns true if there is a tensor `name`.
    fn contains(&self, name: &str) -> bool;

    /// Finds the rows of `tensor` that a rank takes, and of these the columns `columns`. The
    /// whole tensor is `[tensor.rows, width]`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`].
    fn matrix(
        &self,
        tensor: &TensorRows,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError>;

    /// Reads the vector `name` of the shape `shape`, or the vectors of a stack, one behind the
    /// other.
    ///
    /// # Errors
    /// The errors of [`Self::matrix`]; [`ModelError::Read`].
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError>;

    /// Reads the vector `name` of `len` whole numbers.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::NotIntegers`] for other types; [`ModelError::Read`].
    fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>, ModelError>;

    /// Returns the path of the file that holds `name`, for messages; the folder if no file
    /// does.
    fn file_of(&self, name: &str) -> PathBuf;

    /// Returns the paths and handles of all files.
    fn files(&self) -> Vec<(&Path, &File)> {
        Vec::new()
    }

    /// Asks the system to read all files ahead.
    fn read_ahead(&self) {}

    /// Reads the used parts of a matrix into `into`, row after row. Returns `None` if the
    /// matrix needs no reading.
    ///
    /// # Errors
    /// [`ModelError::Read`]: the file is shorter now, or its disk fails.
    fn fetch<'i>(
        &self,
        matrix: &HostMatrix<'_>,
        into: &'i mut Vec<u8>,
    ) -> Result<Option<HostMatrix<'i>>, ModelError> {
        let _ = (matrix, into);
        Ok(None)
    }

    /// Gives the memory of a matrix back after the matrix has been packed.
    fn release(&self, matrix: &HostMatrix<'_>) {
        let _ = matrix;
    }
}

/// Opens the tensors of `model`. Opens no files if the weights are made up.
///
/// # Errors
/// The errors of [`Safetensors::open`].
pub(crate) fn open(model: &ModelConfig, access: FileAccess) -> Result<Box<dyn Source>, ModelError> {
    Ok(match model.load_format {
        LoadFormat::Auto => {
            Box::new(Safetensors::open(&model.path, access)?.in_format(&model.checkpoint))
        }
        LoadFormat::Dummy => Box::new(Dummy::new(&model.path, model.norm)),
    })
}
