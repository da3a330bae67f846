//! Weights of a folder: names, types, shapes and places of its tensors, whatever container holds
//! them. Each container is a file of this module.

mod dtype;
mod gguf;
mod safetensors;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::gguf::Place;
pub use dtype::Dtype;

/// Reason why weights can't be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file can't be read.
    #[error("{name}: {source}")]
    Read {
        /// Name of the file in its folder.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is not what its name says, or was cut off.
    #[error("{name} is damaged: {reason}")]
    Damaged {
        /// Name of the file in its folder.
        name: String,
        /// The reason, in words.
        reason: String,
    },
    /// A file has something that is not served.
    #[error("{name}: {reason}")]
    Unserved {
        /// Name of the file in its folder.
        name: String,
        /// The reason and the remedy, in words.
        reason: String,
    },
}

/// An open file of tensors.
#[derive(Debug)]
pub struct WeightFile {
    /// Name of the file in its folder.
    pub name: String,
    /// Path of the file, as its folder was given.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// The tensors, by name.
    pub tensors: BTreeMap<String, TensorPlace>,
}

impl WeightFile {
    /// Reads the elements of a tensor at `place`.
    ///
    /// # Errors
    /// The system's reason, or that the file is shorter now.
    pub fn read(&self, place: &TensorPlace) -> io::Result<Vec<u8>> {
        let length = place.bytes.end.saturating_sub(place.bytes.start);
        safetensors::bytes(&self.file, place.bytes.start, length)
    }
}

/// Type, shape and place of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlace {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Number of elements in each dimension.
    pub shape: Vec<usize>,
    /// Byte range of the elements in the file.
    pub bytes: Range<u64>,
    /// Number of rows of a head, where the file has the rows of a head's two halves in turn: the
    /// first of the first half, the first of the second, the second of the first. `None` where
    /// rows lie in their order.
    pub interleaved: Option<usize>,
}

/// Returns the names of the tensors of a folder, or of a GGUF file; `None` if the folder has no weights. If there is an
/// index, the files that it names are not opened.
///
/// # Errors
/// [`WeightsError`]. Places and shapes are not checked.
pub fn tensor_names(folder: &Path) -> Result<Option<BTreeSet<String>>, WeightsError> {
    match Place::of(folder) {
        Some(place) => gguf::names(&place).map(Some),
        None => safetensors::names(folder),
    }
}

/// Opens the file `name` of a folder, which holds tensors, and reads where they are. `None` if there
/// is no such file.
///
/// # Errors
/// [`WeightsError`]. The header may have [`LARGEST_INDEX`](crate::LARGEST_INDEX) bytes.
pub fn weight_file(folder: &Path, name: &str) -> Result<Option<WeightFile>, WeightsError> {
    safetensors::file(folder, name)
}

/// Opens the weights of a folder, or of a GGUF file, and reads where their tensors are. The files are sorted by
/// name. `None` if there are none.
///
/// # Errors
/// [`WeightsError`]. Files that an index names must exist. All headers together may have
/// [`LARGEST_INDEX`](crate::LARGEST_INDEX) bytes.
pub fn weight_files(folder: &Path) -> Result<Option<Vec<WeightFile>>, WeightsError> {
    match Place::of(folder) {
        Some(place) => gguf::files(&place).map(Some),
        None => safetensors::files(folder),
    }
}
