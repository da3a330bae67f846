//! Tensors of a model folder, by name; random tensors where there is no checkpoint.

mod dummy;
mod found;
mod index;
mod mapping;
mod read;
mod taken;
mod tensor;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use lockstep_backend::{CheckpointDtype, HostMatrix};
use lockstep_files::LARGEST_INDEX;
use lockstep_types::{LoadFormat, ModelConfig};
use safetensors::{Dtype as FileDType, SafeTensors, tensor::TensorInfo};

use crate::ModelError;
pub(crate) use found::{Found, FoundMatrix, matrix_bytes};
use index::weight_files;
use mapping::MappedFile;
use taken::Table;
use tensor::little_endian;

pub use mapping::FileAccess;
pub use tensor::HostTensor;

/// All tensors of a model folder: one `model.safetensors`, or the files named by
/// `model.safetensors.index.json`. Opening reads only the files' headers.
#[derive(Debug)]
pub struct Weights {
    folder: PathBuf,
    files: Vec<MappedFile>,
    /// Bytes of all files' headers.
    headers: u64,
    tensors: BTreeMap<String, Entry>,
    /// True if there are no files and every tensor is made up.
    dummy: bool,
}

#[derive(Debug)]
struct Entry {
    file: usize,
    dtype: FileDType,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl Weights {
    /// Maps the safetensors of `folder`.
    ///
    /// # Errors
    /// [`ModelError::NoWeights`], [`ModelError::Read`], [`ModelError::Damaged`]
    /// for truncated files and broken headers, [`ModelError::Duplicate`].
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        Self::open_with(folder, FileAccess::Mapped)
    }

    /// Opens the safetensors of `folder`.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn open_with(folder: &Path, access: FileAccess) -> Result<Self, ModelError> {
        let mut weights = Self::none(folder, false);
        for name in weight_files(folder)? {
            weights.add(&name, access)?;
        }
        Ok(weights)
    }

    /// Opens the weights of `model`. Opens no files if the weights are made up.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub(crate) fn of(model: &ModelConfig, access: FileAccess) -> Result<Self, ModelError> {
        match model.load_format {
            LoadFormat::Auto => Self::open_with(&model.path, access),
            LoadFormat::Dummy => Ok(Self::none(&model.path, true)),
        }
    }

    fn none(folder: &Path, dummy: bool) -> Self {
        Self {
            folder: folder.to_owned(),
            files: Vec::new(),
            headers: 0,
            tensors: BTreeMap::new(),
            dummy,
        }
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns true if the files hold the tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the matrix `name`, `[rows, cols]`. Ranks take parts of it.
    ///
    /// # Errors
    /// The errors of [`Self::matrix`].
    pub(crate) fn table(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Table<'_>, ModelError> {
        if self.dummy {
            let numbers = dummy::matrix(name, cols);
            return Ok(Table::Random { numbers, cols });
        }
        self.matrix(name, rows, cols).map(Table::File)
    }

    /// Returns the matrix `name` of the files, which must be `[rows, cols]`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`].
    pub fn matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<HostTensor<'_>, ModelError> {
        self.tensor(name, &[rows, cols])
    }

    /// Returns the vector `name` of length `len`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`].
    pub fn vector(&self, name: &str, len: usize) -> Result<HostTensor<'_>, ModelError> {
        self.tensor(name, &[len])
    }

    /// Returns the elements of the vector `name` of length `len`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`].
    pub(crate) fn floats(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        if self.dummy {
            return Ok(dummy::vector(name, len));
        }
        let vector = self.vector(name, len)?;
        let bytes = self.bytes(vector.bytes)?;
        let vector = HostTensor {
            bytes: &bytes,
            ..vector
        };
        Ok(vector.to_f32(0..len))
    }

    /// Returns the vector `name` of `len` whole numbers.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::NotIntegers`] for other types.
    pub(crate) fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>, ModelError> {
        if self.dummy {
            return Ok(vec![0; len]);
        }
        let (entry, bytes) = self.find(name, &[len])?;
        let bytes = self.bytes(bytes)?;
        match entry.dtype {
            FileDType::I64 => Ok(little_endian(&bytes).map(i64::from_le_bytes).collect()),
            FileDType::I32 => Ok(little_endian(&bytes)
                .map(|bytes| i64::from(i32::from_le_bytes(bytes)))
                .collect()),
            other => Err(ModelError::NotIntegers {
                file: self.file_of(name),
                tensor: name.to_owned(),
                found: format!("{other:?}"),
            }),
        }
    }

    /// Returns the paths and handles of all files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &fs::File)> {
        self.files.iter().map(|file| (file.path(), file.file()))
    }

    /// Asks the system to read all files ahead.
    pub(crate) fn read_ahead(&self) {
        self.files.iter().for_each(MappedFile::read_ahead);
    }

    /// Drops the memory pages of a matrix after it has been packed. The system reads the pages
    /// again if they are accessed.
    pub(crate) fn release(&self, matrix: &HostMatrix<'_>) {
        let HostMatrix::Floats(matrix) = matrix else {
            return;
        };
        let width = matrix.cols * matrix.dtype.bytes();
        for block in matrix.blocks.iter().filter(|block| block.rows > 0) {
            let used = block.offset..block.offset + (block.rows - 1) * block.stride + width;
            if let Some(bytes) = block.bytes.get(used) {
                self.files.iter().for_each(|file| file.release(bytes));
            }
        }
    }

    /// Returns the path of the file that holds `name`, for messages; the folder if no file
    /// does.
    pub(crate) fn file_of(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or_else(
            || self.folder.clone(),
            |entry| self.files[entry.file].path().to_owned(),
        )
    }

    /// Finds a tensor of any type, which must have the shape `expected`.
    fn find(&self, name: &str, expected: &[usize]) -> Result<(&Entry, &[u8]), ModelError> {
        let entry = self
            .tensors
            .get(name)
            .ok_or_else(|| ModelError::MissingTensor {
                folder: self.folder.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
            })?;
        let mapped = &self.files[entry.file];
        if entry.shape != expected {
            return Err(ModelError::WrongShape {
                file: mapped.path().to_owned(),
                tensor: name.to_owned(),
                found: entry.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        Ok((entry, &mapped.bytes()[entry.start..entry.end]))
    }

    fn tensor(&self, name: &str, expected: &[usize]) -> Result<HostTensor<'_>, ModelError> {
        let (entry, bytes) = self.find(name, expected)?;
        let dtype = match entry.dtype {
            FileDType::BF16 => CheckpointDtype::Bf16,
            FileDType::F16 => CheckpointDtype::F16,
            FileDType::F32 => CheckpointDtype::F32,
            other => {
                return Err(ModelError::UnsupportedDType {
                    file: self.file_of(name),
                    tensor: name.to_owned(),
                    found: format!("{other:?}"),
                });
            }
        };
        let (rows, cols) = match *expected {
            [rows, cols] => (rows, cols),
            _ => (1, expected.iter().product()),
        };
        Ok(HostTensor {
            dtype,
            rows,
            cols,
            bytes,
        })
    }

    /// Opens one file and adds its tensors.
    fn add(&mut self, name: &str, access: FileAccess) -> Result<(), ModelError> {
        let mapped = MappedFile::open(&self.folder, name, access)?;
        let (file, mapping) = (mapped.path(), mapped.bytes());
        let damaged = |reason: String| ModelError::Damaged {
            file: file.to_owned(),
            reason,
        };
        let header = header_length(mapping).unwrap_or(0);
        self.headers = self.headers.saturating_add(header);
        if self.headers > LARGEST_INDEX {
            let reason = format!(
                "its header and those of {} files before it have more than {LARGEST_INDEX} bytes \
                 together",
                self.files.len()
            );
            return Err(damaged(reason));
        }
        let (header, metadata) = SafeTensors::read_metadata(mapping)
            .map_err(|error| damaged(truncation(mapping).unwrap_or_else(|| error.to_string())))?;
        let data = header + HEADER_LENGTH_BYTES;
        for (name, info) in metadata.tensors() {
            let entry = entry(self.files.len(), data, info);
            if entry.end > mapping.len() || entry.start > entry.end {
                return Err(damaged(format!("tensor {name} reaches past the end")));
            }
            if let Some(other) = self.tensors.get(&name) {
                return Err(ModelError::Duplicate {
                    tensor: name,
                    first: self.files[other.file].path().to_owned(),
                    second: file.to_owned(),
                });
            }
            self.tensors.insert(name, entry);
        }
        self.files.push(mapped);
        Ok(())
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        lockstep_files::close(std::mem::take(&mut self.files));
    }
}

/// Bytes at the beginning of a safetensors file that hold the header's length, a `u64`.
const HEADER_LENGTH_BYTES: usize = 8;

fn entry(file: usize, data: usize, info: &TensorInfo) -> Entry {
    Entry {
        file,
        dtype: info.dtype,
        shape: info.shape.clone(),
        start: data + info.data_offsets.0,
        end: data + info.data_offsets.1,
    }
}

fn header_length(bytes: &[u8]) -> Option<u64> {
    let length = bytes.get(..HEADER_LENGTH_BYTES)?;
    Some(u64::from_le_bytes(length.try_into().ok()?))
}

/// Describes in words by how much a file's size is wrong. `None` if the size is right, or if
/// the header can't be parsed.
fn truncation(bytes: &[u8]) -> Option<String> {
    let header = usize::try_from(header_length(bytes)?).ok()?;
    let data = header.checked_add(HEADER_LENGTH_BYTES)?;
    let Some(json) = bytes.get(HEADER_LENGTH_BYTES..data) else {
        return Some(format!(
            "its header should have {header} bytes, the file has {}",
            bytes.len()
        ));
    };
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(json).ok()?;
    let end = header
        .values()
        .filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64())
        .max()?;
    let expected = (data as u64).checked_add(end)?;
    (bytes.len() as u64 != expected)
        .then(|| format!("it should have {expected} bytes and has {}", bytes.len()))
}

#[cfg(test)]
mod tests;
