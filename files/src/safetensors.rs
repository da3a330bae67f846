//! Headers of the safetensors of a folder: names, types, shapes and places of tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::Metadata;
use serde::Deserialize;

use crate::{LARGEST_INDEX, MOST_WEIGHT_FILES, close, on_reader_thread, read_exact_at};

pub use safetensors::Dtype;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Size of the header's length, a `u64` at the beginning of a file.
const LENGTH_BYTES: u64 = 8;

/// Reason why safetensors can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
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
}

/// An open file of tensors.
#[derive(Debug)]
pub struct WeightFile {
    /// Name of the file in its folder.
    pub name: String,
    /// The file.
    pub file: File,
    /// The tensors, by name.
    pub tensors: BTreeMap<String, TensorPlace>,
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
}

/// Returns the names of a folder's tensors; `None` if the folder has no safetensors. If there
/// is an index, the files that it names are not opened.
///
/// # Errors
/// [`SafetensorsError`].
pub fn tensor_names(folder: &Path) -> Result<Option<BTreeSet<String>>, SafetensorsError> {
    if let Some(index) = index(folder)? {
        return Ok(Some(index.into_keys().collect()));
    }
    let file = unless_absent(open(folder, SINGLE, &mut HeadersRead::default()))?;
    Ok(file.map(|file| file.tensors.into_keys().collect()))
}

/// Opens the safetensors of a folder and reads their headers: one `model.safetensors`, or the
/// files named by `model.safetensors.index.json`, sorted by name. `None` if there are none.
///
/// # Errors
/// [`SafetensorsError`]. Files that the index names must exist. Their headers may have
/// [`LARGEST_INDEX`] bytes together.
pub fn weight_files(folder: &Path) -> Result<Option<Vec<WeightFile>>, SafetensorsError> {
    let mut read = HeadersRead::default();
    let Some(index) = index(folder)? else {
        let file = unless_absent(open(folder, SINGLE, &mut read))?;
        return Ok(file.map(|file| vec![file]));
    };
    let names: BTreeSet<_> = index.into_values().collect();
    if names.len() > MOST_WEIGHT_FILES {
        let count = names.len();
        let reason = format!("it names {count} files, more than {MOST_WEIGHT_FILES}");
        return Err(damaged(INDEX, reason));
    }
    for name in &names {
        // Only a file name is allowed: an index must not reach outside its folder.
        let file = Path::new(name).file_name();
        if file.is_none_or(|file| file != name.as_str()) {
            return Err(damaged(INDEX, format!("{name:?} is not a file name")));
        }
    }
    let mut files = Vec::with_capacity(names.len());
    for name in &names {
        match open(folder, name, &mut read) {
            Ok(file) => files.push(file),
            Err(error) => {
                close(files);
                return Err(error);
            }
        }
    }
    Ok(Some(files))
}

/// Reads the file of each tensor from the index of several files; `None` without an index.
fn index(folder: &Path) -> Result<Option<BTreeMap<String, String>>, SafetensorsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = crate::read(folder, INDEX, LARGEST_INDEX).map_err(|source| unread(INDEX, source));
    let Some(text) = unless_absent(text)? else {
        return Ok(None);
    };
    let index: Index =
        serde_json::from_slice(&text).map_err(|error| damaged(INDEX, error.to_string()))?;
    Ok(Some(index.weight_map))
}

/// Headers that were read so far.
#[derive(Default)]
struct HeadersRead {
    files: usize,
    bytes: u64,
}

impl HeadersRead {
    /// Counts a header of `length` bytes.
    ///
    /// # Errors
    /// The reason why there are too many bytes.
    fn add(&mut self, length: u64) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes > LARGEST_INDEX {
            return Err(format!(
                "its header and those of {} files before it have more than {LARGEST_INDEX} bytes \
                 together",
                self.files
            ));
        }
        self.files += 1;
        Ok(())
    }
}

/// Opens a file, reads its header and counts it.
fn open(folder: &Path, name: &str, read: &mut HeadersRead) -> Result<WeightFile, SafetensorsError> {
    let file = crate::open(folder, name).map_err(|source| unread(name, source))?;
    let tensors = header(&file, name, read)?;
    Ok(WeightFile {
        name: name.to_owned(),
        file,
        tensors,
    })
}

/// Reads a header: its length in eight bytes, then JSON. The tensors must fill the rest of the
/// file, one behind the other.
fn header(
    file: &File,
    name: &str,
    read: &mut HeadersRead,
) -> Result<BTreeMap<String, TensorPlace>, SafetensorsError> {
    let failed = |source| unread(name, source);
    let size = size(file).map_err(failed)?;
    let Some(rest) = size.checked_sub(LENGTH_BYTES) else {
        return Err(damaged(name, format!("it has {size} bytes and no header")));
    };
    let length = bytes(file, 0, LENGTH_BYTES).map_err(failed)?;
    let length = length.first_chunk().copied().unwrap_or_default();
    let length = u64::from_le_bytes(length);
    if length > rest {
        let reason = format!("its header should have {length} bytes, the file has {size}");
        return Err(damaged(name, reason));
    }
    read.add(length).map_err(|reason| damaged(name, reason))?;
    let json = bytes(file, LENGTH_BYTES, length).map_err(failed)?;
    let header: Metadata =
        serde_json::from_slice(&json).map_err(|error| damaged(name, error.to_string()))?;
    let data = LENGTH_BYTES + length;
    let expected = data.saturating_add(header.data_len() as u64);
    if size != expected {
        let reason = format!("it should have {expected} bytes and has {size}");
        return Err(damaged(name, reason));
    }
    let place = |(tensor, info): (String, &safetensors::tensor::TensorInfo)| {
        let (start, end) = info.data_offsets;
        let place = TensorPlace {
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: data + start as u64..data + end as u64,
        };
        (tensor, place)
    };
    Ok(header.tensors().into_iter().map(place).collect())
}

/// The size of a file in bytes.
fn size(file: &File) -> io::Result<u64> {
    let file = file.try_clone()?;
    on_reader_thread(move || Ok(file.metadata()?.len()))
}

/// Reads `length` bytes from `offset` on.
fn bytes(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let file = file.try_clone()?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    on_reader_thread(move || {
        let mut bytes = vec![0; length];
        read_exact_at(&file, &mut bytes, offset)?;
        Ok(bytes)
    })
}

fn unless_absent<T>(read: Result<T, SafetensorsError>) -> Result<Option<T>, SafetensorsError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(SafetensorsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn unread(name: &str, source: io::Error) -> SafetensorsError {
    SafetensorsError::Read {
        name: name.to_owned(),
        source,
    }
}

fn damaged(name: &str, reason: String) -> SafetensorsError {
    SafetensorsError::Damaged {
        name: name.to_owned(),
        reason,
    }
}
