//! Headers of a folder's safetensors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use lockstep_files::{LARGEST_INDEX, MOST_WEIGHT_FILES};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Entry of a header that is no tensor.
const METADATA: &str = "__metadata__";

/// A file's header: places of the tensors that were asked for.
pub(crate) struct Header {
    /// Places by name.
    pub(crate) places: BTreeMap<String, Place>,
    pub(crate) file: File,
    /// Place in the file where the tensors' numbers begin. All offsets count from there.
    pub(crate) data: u64,
}

/// Place of a tensor in its file.
#[derive(Deserialize)]
pub(crate) struct Place {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    /// First byte, and the byte behind the last one.
    pub(crate) data_offsets: (u64, u64),
}

/// Names of all tensors; `None` if there are no safetensors.
///
/// # Errors
/// The errors of reading; a damaged file is named.
pub(crate) fn names(folder: &Path) -> io::Result<Option<BTreeSet<String>>> {
    if let Some(index) = index(folder)? {
        return Ok(Some(index.into_keys().collect()));
    }
    let text = unless_absent(SINGLE, header(folder, SINGLE))?;
    let Some(Text { json, .. }) = text else {
        return Ok(None);
    };
    let all: BTreeMap<String, IgnoredAny> = serde_json::from_slice(&json)?;
    let names = all.into_keys();
    Ok(Some(names.filter(|name| name != METADATA).collect()))
}

/// The headers of all files, which stay open, with the places of the tensors `names`.
///
/// # Errors
/// The errors of reading; a damaged file is named.
pub(crate) fn headers(folder: &Path, names: &[String]) -> io::Result<Vec<Header>> {
    let files = match index(folder)? {
        Some(index) => index.into_values().collect(),
        None => BTreeSet::from([SINGLE.to_owned()]),
    };
    if files.len() > MOST_WEIGHT_FILES {
        let count = files.len();
        let error = format!("{INDEX} names {count} files, more than {MOST_WEIGHT_FILES}");
        return Err(io::Error::other(error));
    }
    let of_file = |name: &String| {
        let Text { json, file, data } = header(folder, name)?;
        let places = Asked(names).deserialize(&mut serde_json::Deserializer::from_slice(&json))?;
        Ok(Header { places, file, data })
    };
    files.iter().map(of_file).collect()
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

/// The text of a file's header.
struct Text {
    json: Vec<u8>,
    file: File,
    /// Place in the file behind the header.
    data: u64,
}

/// The header of one file: its length in eight bytes, then JSON.
fn header(folder: &Path, name: &str) -> io::Result<Text> {
    let mut file = lockstep_files::open(folder, name)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_INDEX.min(file.metadata()?.len()) {
        return Err(io::Error::other(format!("{name} is damaged")));
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json)?;
    let data = length + 8;
    Ok(Text { json, file, data })
}

/// Reader of a header that keeps the places of some tensors and skips all others.
struct Asked<'n>(&'n [String]);

impl<'de> DeserializeSeed<'de> for Asked<'_> {
    type Value = BTreeMap<String, Place>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Asked<'_> {
    type Value = BTreeMap<String, Place>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
        let mut places = BTreeMap::new();
        while let Some(name) = all.next_key::<String>()? {
            match self.0.contains(&name) {
                true => drop(places.insert(name, all.next_value()?)),
                false => drop(all.next_value::<IgnoredAny>()?),
            }
        }
        Ok(places)
    }
}
