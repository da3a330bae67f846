//! Header of a GGUF file: keys with values, then names, types, shapes and places of tensors.
//!
//! Every number in it may be a lie. Lengths are compared with the file's size before memory is
//! taken, lists stay the bytes that they are in the file, and products are checked. So a header
//! takes no more memory than its bytes, beside bounded lists of keys and tensors.

mod values;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::bytes::{Cursor, Fault, Source};
use super::error::GgufError;
use super::metadata::{self, Value};
use super::tensor_type::TensorType;

/// First bytes of a file.
const MAGIC: [u8; 4] = *b"GGUF";
/// Versions that are read. The second has the same layout as the third.
const VERSIONS: [u32; 2] = [2, 3];
/// Largest number of keys; no file comes near it.
const MOST_KEYS: u64 = 1 << 14;
/// Largest number of tensors of a file; no file comes near it.
const MOST_TENSORS: u64 = 1 << 16;
/// Largest number of bytes of a name.
const LONGEST_NAME: u64 = 1 << 10;
/// Largest number of dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 4;
/// Key of the alignment of tensors, and its value where there is none.
const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment.
const LARGEST_ALIGNMENT: u64 = 1 << 20;

/// A header that was read.
#[derive(Debug)]
pub(crate) struct Header {
    /// Name of the file.
    pub name: String,
    /// Bytes of the header.
    bytes: Vec<u8>,
    /// Values by key.
    values: BTreeMap<String, Value>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// A tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Type of the elements.
    pub kind: TensorType,
    /// Number of elements in each dimension, outermost first.
    pub shape: Vec<usize>,
    /// Byte range in the file.
    pub bytes: Range<u64>,
}

/// A tensor before the place of the data is known.
struct Info {
    kind: TensorType,
    /// Dimensions, innermost first.
    dims: Vec<u64>,
    offset: u64,
}

impl Header {
    /// Returns the bytes of the header.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Reads the header of the file `name`.
    ///
    /// # Errors
    /// [`GgufError`].
    pub fn read(name: &str, source: &dyn Source) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(source);
        let failed = |fault| match fault {
            Fault::Read(source) => GgufError::Read {
                name: name.to_owned(),
                source,
            },
            Fault::Damaged(reason) => GgufError::damaged(name, reason),
        };
        version(&mut cursor, name).map_err(failed)??;
        let (values, infos) = body(&mut cursor).map_err(failed)?;
        let end = cursor.at();
        let mut header = Self {
            name: name.to_owned(),
            bytes: cursor.into_bytes(),
            values,
            tensors: BTreeMap::new(),
        };
        let alignment = header.alignment()?;
        let damaged = |reason: String| GgufError::damaged(name, reason);
        // The file may end behind the header, if it has no tensors.
        let data = end.div_ceil(alignment) * alignment;
        for (tensor, info) in infos {
            let placed = placed(&tensor, info, data, alignment, source.size()).map_err(damaged)?;
            header.tensors.insert(tensor, placed);
        }
        Ok(header)
    }

    fn alignment(&self) -> Result<u64, GgufError> {
        let alignment = self.unsigned(ALIGNMENT)?.unwrap_or(DEFAULT_ALIGNMENT);
        match alignment.is_power_of_two() && alignment <= LARGEST_ALIGNMENT {
            true => Ok(alignment),
            false => Err(self.wrong(ALIGNMENT, &format!("is {alignment}, no power of two"))),
        }
    }

    /// Returns the value of `key`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Returns all keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns bytes of the header.
    pub fn bytes(&self, place: &Range<usize>) -> &[u8] {
        self.bytes.get(place.clone()).unwrap_or_default()
    }
}

/// Reads the first bytes and the version.
fn version(cursor: &mut Cursor<'_>, name: &str) -> Result<Result<(), GgufError>, Fault> {
    if cursor.array()? != MAGIC {
        return Err("it is no GGUF file".to_owned().into());
    }
    let version = cursor.u32()?;
    let unserved = |reason: &str| Ok(Err(GgufError::unserved(name, reason)));
    match version {
        _ if VERSIONS.contains(&version) => Ok(Ok(())),
        _ if VERSIONS.contains(&version.swap_bytes()) => {
            unserved("its numbers are big-endian; convert the model for little-endian machines")
        }
        other => unserved(&format!(
            "it has version {other} of the format; served are 2 and 3: convert the model with a \
             current llama.cpp"
        )),
    }
}

/// Keys with their values, and tensors in the file's order.
type Body = (BTreeMap<String, Value>, Vec<(String, Info)>);

fn body(cursor: &mut Cursor<'_>) -> Result<Body, Fault> {
    let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
    for (count, most, what) in [
        (keys, MOST_KEYS, "keys"),
        (tensors, MOST_TENSORS, "tensors"),
    ] {
        if count > most {
            return Err(format!("it should have {count} {what}, more than {most}").into());
        }
    }
    let mut values = BTreeMap::new();
    for _ in 0..keys {
        let key = name(cursor)?;
        let value = metadata::take(cursor).map_err(|fault| match fault {
            Fault::Damaged(reason) => Fault::Damaged(format!("key {key}: {reason}")),
            other => other,
        })?;
        match values.entry(key) {
            Entry::Vacant(entry) => entry.insert(value),
            Entry::Occupied(entry) => {
                return Err(format!("key {} is there twice", entry.key()).into());
            }
        };
    }
    let mut infos = BTreeMap::new();
    for _ in 0..tensors {
        let tensor = name(cursor)?;
        let info = info(cursor, &tensor)?;
        if infos.insert(tensor.clone(), info).is_some() {
            return Err(format!("tensor {tensor} is there twice").into());
        }
    }
    Ok((values, infos.into_iter().collect()))
}

/// Reads a name, which is UTF-8.
fn name(cursor: &mut Cursor<'_>) -> Result<String, Fault> {
    let length = cursor.u64()?;
    if length > LONGEST_NAME {
        return Err(format!("a name has {length} bytes, more than {LONGEST_NAME}").into());
    }
    let place = cursor.take(length)?;
    let text = std::str::from_utf8(cursor.bytes(place));
    Ok(text
        .map_err(|_| "a name is not UTF-8".to_owned())?
        .to_owned())
}

fn info(cursor: &mut Cursor<'_>, tensor: &str) -> Result<Info, Fault> {
    let count = cursor.u32()?;
    if !(1..=MOST_DIMENSIONS).contains(&count) {
        return Err(format!("tensor {tensor} has {count} dimensions").into());
    }
    let mut dims = Vec::with_capacity(count as usize);
    for _ in 0..count {
        dims.push(cursor.u64()?);
    }
    let id = cursor.u32()?;
    let kind = TensorType::numbered(id);
    let kind = kind.ok_or_else(|| format!("tensor {tensor} has the unknown type {id}"))?;
    Ok(Info {
        kind,
        dims,
        offset: cursor.u64()?,
    })
}

/// Finds the bytes of a tensor in a file of `size` bytes, whose data begin at `data`.
fn placed(name: &str, info: Info, data: u64, alignment: u64, size: u64) -> Result<Tensor, String> {
    let Info { kind, dims, offset } = info;
    let wrong = |reason: String| format!("tensor {name} {reason}");
    if dims.contains(&0) {
        return Err(wrong(format!("has the dimensions {dims:?}")));
    }
    if !offset.is_multiple_of(alignment) {
        return Err(wrong(format!("is at {offset}, no multiple of {alignment}")));
    }
    let bytes = kind.bytes_of(&dims);
    let bytes = bytes.ok_or_else(|| wrong(format!("has no size: {dims:?} in {}", kind.name)))?;
    let begin = data.checked_add(offset);
    let place = begin.and_then(|begin| Some(begin..begin.checked_add(bytes)?));
    let place = place.filter(|place| place.end <= size);
    let place = place.ok_or_else(|| {
        wrong(format!(
            "has {bytes} bytes from {offset} on, and the file ends at byte {size}: it was cut off"
        ))
    })?;
    // Each dimension is at most the tensor's bytes times the elements of a block.
    let sizes = dims.iter().rev().map(|dim| usize::try_from(*dim));
    let shape = sizes.collect::<Result<_, _>>();
    Ok(Tensor {
        kind,
        shape: shape.map_err(|_| wrong(format!("has the dimensions {dims:?}")))?,
        bytes: place,
    })
}

#[cfg(test)]
mod tests;
