//! Safetensors: one `model.safetensors`, or the files that `model.safetensors.index.json` names.

mod header;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{WeightFile, WeightsError};
use crate::{LARGEST_INDEX, MOST_WEIGHT_FILES, close, on_reader_thread, read_exact_at};
use header::Named;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Size of the header's length, a `u64` at the beginning of a file.
const LENGTH_BYTES: u64 = 8;

/// See [`super::tensor_names`].
pub(super) fn names(folder: &Path) -> Result<Option<BTreeSet<String>>, WeightsError> {
    if let Some(index) = index(folder)? {
        return Ok(Some(index.into_keys().collect()));
    }
    let opened = crate::open(folder, SINGLE).map_err(|source| unread(SINGLE, source));
    let Some(file) = unless_absent(opened)? else {
        return Ok(None);
    };
    let (json, _) = header_text(&file, SINGLE, &mut HeadersRead::default())?;
    let header: Named<IgnoredAny> =
        serde_json::from_slice(&json).map_err(|error| damaged(SINGLE, error.to_string()))?;
    Ok(Some(header.0.into_keys().collect()))
}

/// See [`super::weight_file`].
pub(super) fn file(folder: &Path, name: &str) -> Result<Option<WeightFile>, WeightsError> {
    unless_absent(open(folder, name, &mut HeadersRead::default()))
}

/// See [`super::weight_files`].
pub(super) fn files(folder: &Path) -> Result<Option<Vec<WeightFile>>, WeightsError> {
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
fn index(folder: &Path) -> Result<Option<BTreeMap<String, String>>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Named<String>,
    }
    let text = crate::read(folder, INDEX, LARGEST_INDEX).map_err(|source| unread(INDEX, source));
    let Some(text) = unless_absent(text)? else {
        return Ok(None);
    };
    let index: Index =
        serde_json::from_slice(&text).map_err(|error| damaged(INDEX, error.to_string()))?;
    Ok(Some(index.weight_map.0))
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
fn open(folder: &Path, name: &str, read: &mut HeadersRead) -> Result<WeightFile, WeightsError> {
    let file = crate::open(folder, name).map_err(|source| unread(name, source))?;
    let (json, size) = header_text(&file, name, read)?;
    let begin = LENGTH_BYTES + json.len() as u64;
    let tensors = header::places(&json, begin..size).map_err(|reason| damaged(name, reason))?;
    Ok(WeightFile {
        name: name.to_owned(),
        path: folder.join(name),
        file,
        tensors,
    })
}

/// Reads the text of a header, which comes after its length in eight bytes. Also returns the
/// size of the file.
fn header_text(
    file: &File,
    name: &str,
    read: &mut HeadersRead,
) -> Result<(Vec<u8>, u64), WeightsError> {
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
    Ok((json, size))
}

/// The size of a file in bytes.
fn size(file: &File) -> io::Result<u64> {
    let file = file.try_clone()?;
    on_reader_thread(move || Ok(file.metadata()?.len()))
}

/// Reads `length` bytes from `offset` on.
pub(super) fn bytes(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let file = file.try_clone()?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    on_reader_thread(move || {
        let mut bytes = vec![0; length];
        read_exact_at(&file, &mut bytes, offset)?;
        Ok(bytes)
    })
}

fn unless_absent<T>(read: Result<T, WeightsError>) -> Result<Option<T>, WeightsError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(WeightsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn unread(name: &str, source: io::Error) -> WeightsError {
    WeightsError::Read {
        name: name.to_owned(),
        source,
    }
}

fn damaged(name: &str, reason: String) -> WeightsError {
    WeightsError::Damaged {
        name: name.to_owned(),
        reason,
    }
}
