//! Headers of a folder's safetensors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use lockstep_files::{LARGEST_INDEX, MOST_WEIGHT_FILES};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A file's header; `T` has the fields to keep.
pub(crate) struct Header<T> {
    pub(crate) says: T,
    pub(crate) file: File,
    /// Place in the file where the tensors' numbers begin. All offsets count from there.
    pub(crate) data: u64,
}

/// Names of all tensors; `None` if there are no safetensors.
///
/// # Errors
/// The errors of reading; a damaged file is named.
pub(crate) fn names(folder: &Path) -> io::Result<Option<BTreeSet<String>>> {
    if let Some(index) = index(folder)? {
        return Ok(Some(index.into_keys().collect()));
    }
    let header = header::<BTreeMap<String, IgnoredAny>>(folder, SINGLE);
    let header = unless_absent(SINGLE, header)?;
    Ok(header.map(|header| {
        let names = header.says.into_keys();
        names.filter(|name| name != "__metadata__").collect()
    }))
}

/// The headers of all files, which stay open.
///
/// # Errors
/// The errors of reading; a damaged file is named.
pub(crate) fn headers<T: DeserializeOwned>(folder: &Path) -> io::Result<Vec<Header<T>>> {
    let files = match index(folder)? {
        Some(index) => index.into_values().collect(),
        None => BTreeSet::from([SINGLE.to_owned()]),
    };
    if files.len() > MOST_WEIGHT_FILES {
        let count = files.len();
        let error = format!("{INDEX} names {count} files, more than {MOST_WEIGHT_FILES}");
        return Err(io::Error::other(error));
    }
    files.iter().map(|name| header(folder, name)).collect()
}

/// `None` if there is no such file; other errors name the file.
fn unless_absent<T>(name: &str, read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{name}: {error}"))),
    }
}

/// The file of each tensor, from the index of several files; `None` if there is no index.
fn index(folder: &Path) -> io::Result<Option<BTreeMap<String, String>>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = unless_absent(INDEX, lockstep_files::read(folder, INDEX, LARGEST_INDEX))?;
    let index: Option<Index> = text.map(|text| serde_json::from_slice(&text)).transpose()?;
    Ok(index.map(|index| index.weight_map))
}

/// The header of one file: its length in eight bytes, then JSON.
fn header<T: DeserializeOwned>(folder: &Path, name: &str) -> io::Result<Header<T>> {
    let mut file = lockstep_files::open(folder, name)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_INDEX.min(file.metadata()?.len()) {
        return Err(io::Error::other(format!("{name} is damaged")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text)?;
    Ok(Header {
        says: serde_json::from_slice(&text)?,
        file,
        data: length + 8,
    })
}
