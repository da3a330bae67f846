//! Tensors of a model folder in Hugging Face's names: safetensors, or a GGUF file.

mod fp8;
mod gguf;
mod integers;
mod mapping;
mod mxfp4;
mod read;
mod tensor;
mod turned;

use std::{
    collections::BTreeMap,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

use lockstep_backend::{CheckpointDtype, HostBlock, HostFloats, HostMatrix};
use lockstep_files::is_gguf;
use lockstep_files::weights::{Dtype, TensorPlace, WeightFile, WeightsError, weight_files};

use lockstep_types::{CheckpointFormat, Fp8Checkpoint, IntegerCheckpoint};

use super::Source;
use crate::{ModelError, blocks::parts::TensorRows};
use gguf::RowRun;
use mapping::MappedFile;
use tensor::little_endian;

pub use mapping::FileAccess;
pub use tensor::HostTensor;

/// All tensors of a model folder: one `model.safetensors`, the files named by
/// `model.safetensors.index.json`, or a GGUF file in place of the folder. Opening reads only the files' headers.
#[derive(Debug)]
pub struct Safetensors {
    folder: PathBuf,
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, Entry>,
    /// True if tensors may be 8-bit floats.
    fp8: bool,
    /// True if stacks of experts may be MXFP4.
    mxfp4: bool,
    /// Rows and columns of 8-bit floats that share a scale; `None` if whole rows or tensors do.
    block: Option<[usize; 2]>,
    /// True if some tensors have scales of such blocks, and others scales of rows or tensors.
    mixed: bool,
    /// Facts of the configuration about integers, if tensors may be integers.
    integers: Option<IntegerCheckpoint>,
}

/// Place of a tensor in one of the files.
#[derive(Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
    /// Rows of a head whose halves lie in turn: see [`TensorPlace::interleaved`].
    interleaved: Option<usize>,
}

impl Safetensors {
    /// Opens the safetensors of `folder`.
    ///
    /// # Errors
    /// [`ModelError::NoWeights`], [`ModelError::Read`], [`ModelError::Damaged`]
    /// for truncated files and broken headers, [`ModelError::Duplicate`].
    pub fn open(folder: &Path, access: FileAccess) -> Result<Self, ModelError> {
        let files = weight_files(folder).map_err(|error| failed(folder, error))?;
        let files = files.ok_or_else(|| ModelError::NoWeights {
            folder: folder.to_owned(),
        })?;
        let mut opened = Self {
            folder: folder.to_owned(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
            fp8: false,
            mxfp4: false,
            block: None,
            mixed: false,
            integers: None,
        };
        for file in files {
            opened.add(file, access)?;
        }
        Ok(opened)
    }

    /// Returns the tensors as those of a checkpoint in `format`. Without this they are those of
    /// one of floats.
    #[must_use]
    pub fn in_format(mut self, format: &CheckpointFormat) -> Self {
        match format {
            // Each tensor of a GGUF file says what it is.
            CheckpointFormat::Floats | CheckpointFormat::Gguf(_) => {}
            CheckpointFormat::Fp8(fp8) => self.set_fp8(fp8),
            CheckpointFormat::Mxfp4(_) => self.mxfp4 = true,
            CheckpointFormat::Integers(integers) => {
                if let Some(fp8) = &integers.fp8 {
                    self.set_fp8(fp8);
                }
                self.integers = Some(integers.clone());
            }
        }
        self
    }

    fn set_fp8(&mut self, fp8: &Fp8Checkpoint) {
        (self.fp8, self.block, self.mixed) = (true, fp8.block, fp8.mixed);
    }

    /// Returns the shape of the tensor `name`; no dimensions if there is no such tensor.
    fn shape(&self, name: &str) -> &[usize] {
        self.tensors.get(name).map_or(&[], |entry| &entry.shape)
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
        if !has_shape(&entry.shape, expected) {
            return Err(ModelError::WrongShape {
                file: mapped.path().to_owned(),
                tensor: name.to_owned(),
                found: entry.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        Ok((entry, &mapped.bytes()[entry.bytes.clone()]))
    }

    /// Returns the floats of the tensor `name`, which must have the shape `expected`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`].
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<HostTensor<'_>, ModelError> {
        let (entry, bytes) = self.find(name, expected)?;
        let dtype = match entry.dtype {
            Dtype::BF16 => CheckpointDtype::Bf16,
            Dtype::F16 => CheckpointDtype::F16,
            Dtype::F32 => CheckpointDtype::F32,
            other => return Err(self.unserved(name, other)),
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

    /// The error for a tensor of a type that is not served.
    fn unserved(&self, name: &str, dtype: Dtype) -> ModelError {
        ModelError::UnsupportedDType {
            file: self.file_of(name),
            tensor: name.to_owned(),
            found: format!("{dtype:?}"),
        }
    }

    /// Maps one file and adds its tensors.
    fn add(&mut self, file: WeightFile, access: FileAccess) -> Result<(), ModelError> {
        let WeightFile {
            path,
            file,
            tensors,
            ..
        } = file;
        let mapped = MappedFile::new(path, file, access)?;
        for (name, place) in tensors {
            let TensorPlace {
                dtype,
                shape,
                bytes,
                interleaved,
            } = place;
            let [start, end] = [bytes.start, bytes.end].map(|at| usize::try_from(at).ok());
            let bytes = start.zip(end).map(|(start, end)| start..end);
            // The file may be shorter than when its header was read.
            let inside = bytes.filter(|bytes| mapped.bytes().get(bytes.clone()).is_some());
            let bytes = inside.ok_or_else(|| ModelError::Damaged {
                file: mapped.path().to_owned(),
                reason: format!("tensor {name} reaches past the end"),
            })?;
            if let Some(other) = self.tensors.get(&name) {
                return Err(ModelError::Duplicate {
                    tensor: name,
                    first: self.files[other.file].path().to_owned(),
                    second: mapped.path().to_owned(),
                });
            }
            let entry = Entry {
                file: self.files.len(),
                dtype,
                shape,
                bytes,
                interleaved,
            };
            self.tensors.insert(name, entry);
        }
        self.files.push(mapped);
        Ok(())
    }
}

/// Returns true if a tensor of the shape `found` can be read as one of the shape `expected`: it has
/// that shape, or its first dimensions together are the rows of a matrix.
fn has_shape(found: &[usize], expected: &[usize]) -> bool {
    let stacked = match (found, expected) {
        ([first @ .., width], [rows, cols]) if first.len() > 1 => {
            let product = first
                .iter()
                .try_fold(1usize, |all, own| all.checked_mul(*own));
            width == cols && product == Some(*rows)
        }
        _ => false,
    };
    stacked || found == expected
}

impl Source for Safetensors {
    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn matrix(
        &self,
        tensor: &TensorRows,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        let dtype = self.tensors.get(&tensor.name).map(|entry| entry.dtype);
        if let Some(Dtype::Blocks(kind)) = dtype {
            return self.gguf(tensor, kind, width, columns);
        }
        if self.has_integers(&tensor.name) {
            return self.integer_matrix(tensor, width, columns);
        }
        if self.fp8 && dtype == Some(Dtype::F8_E4M3) {
            return self.fp8(tensor, width, columns);
        }
        if self.fp8 || self.integers.is_some() {
            self.check_floats(&tensor.name)?;
        }
        if let Some(outputs) = tensor.turned {
            if self.mxfp4 && dtype.is_none() {
                return self.mxfp4(tensor, outputs, width, columns);
            }
            return self.turned(tensor, outputs, width, columns);
        }
        let whole = self.tensor(&tensor.name, &[tensor.rows, width])?;
        let row_bytes = whole.cols * whole.dtype.bytes();
        let block = |run: RowRun| HostBlock {
            rows: run.count,
            stride: row_bytes * run.step,
            ..whole.block(run.first..run.first + 1, columns.start)
        };
        Ok(HostMatrix::Floats(HostFloats {
            cols: columns.len(),
            dtype: whole.dtype,
            blocks: self.runs(tensor).into_iter().map(block).collect(),
        }))
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let vector = self.tensor(name, shape)?;
        let bytes = self.bytes(vector.bytes)?;
        let vector = HostTensor {
            bytes: &bytes,
            ..vector
        };
        let values = vector.to_f32(0..shape.iter().product());
        Ok(self.in_order(name, values))
    }

    fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>, ModelError> {
        let (entry, bytes) = self.find(name, &[len])?;
        let bytes = self.bytes(bytes)?;
        match entry.dtype {
            Dtype::I64 => Ok(little_endian(&bytes).map(i64::from_le_bytes).collect()),
            Dtype::I32 => Ok(little_endian(&bytes)
                .map(|bytes| i64::from(i32::from_le_bytes(bytes)))
                .collect()),
            other => Err(ModelError::NotIntegers {
                file: self.file_of(name),
                tensor: name.to_owned(),
                found: format!("{other:?}"),
            }),
        }
    }

    fn file_of(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or_else(
            || self.folder.clone(),
            |entry| self.files[entry.file].path().to_owned(),
        )
    }

    fn files(&self) -> Vec<(&Path, &File)> {
        let files = self.files.iter();
        files.map(|file| (file.path(), file.file())).collect()
    }

    fn read_ahead(&self) {
        self.files.iter().for_each(MappedFile::read_ahead);
    }

    fn fetch<'i>(
        &self,
        matrix: &HostMatrix<'_>,
        into: &'i mut Vec<u8>,
    ) -> Result<Option<HostMatrix<'i>>, ModelError> {
        self.fetch_rows(matrix, into)
    }

    /// Drops the memory pages of the matrix. The system reads the pages again if they are
    /// accessed.
    fn release(&self, matrix: &HostMatrix<'_>) {
        for (blocks, width) in matrix.form().parts() {
            for block in blocks.iter().filter(|block| block.rows > 0) {
                let used = block.offset..block.offset + (block.rows - 1) * block.stride + width;
                if let Some(bytes) = block.bytes.get(used) {
                    self.files.iter().for_each(|file| file.release(bytes));
                }
            }
        }
    }
}

impl Drop for Safetensors {
    fn drop(&mut self) {
        lockstep_files::close(std::mem::take(&mut self.files));
    }
}

/// The error for safetensors of `folder` that can't be used.
fn failed(folder: &Path, error: WeightsError) -> ModelError {
    let file = |name: &str| match is_gguf(folder) {
        true => folder.with_file_name(name),
        false => folder.join(name),
    };
    match error {
        WeightsError::Read { name, source } => ModelError::Read {
            file: file(&name),
            source,
        },
        WeightsError::Damaged { name, reason } => ModelError::Damaged {
            file: file(&name),
            reason,
        },
        WeightsError::Unserved { name, reason } => ModelError::Unserved {
            file: file(&name),
            reason,
        },
    }
}

#[cfg(test)]
mod tests;
