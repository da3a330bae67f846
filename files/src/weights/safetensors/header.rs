//! Header of a file: a JSON object with the type, shape and place of each tensor.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::weights::TensorPlace;

/// Largest number of tensors of a file or an index; no model comes near it.
const MOST_TENSORS: usize = 1 << 19;
/// Largest number of dimensions of a tensor.
const MOST_DIMENSIONS: usize = 8;
/// Key of texts about the file, in place of a tensor.
const METADATA: &str = "__metadata__";

/// Values by the names of tensors. The text is read from front to back, and only names and
/// values are kept. A name that is there twice is an error.
pub(super) struct Named<T>(pub BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
        let mut named = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if named.len() == MOST_TENSORS {
                return Err(A::Error::custom(format!(
                    "more than {MOST_TENSORS} tensors"
                )));
            }
            match named.entry(name) {
                Entry::Vacant(entry) => entry.insert(map.next_value()?),
                Entry::Occupied(entry) => {
                    let message = format!("tensor {} is there twice", entry.key());
                    return Err(A::Error::custom(message));
                }
            };
        }
        Ok(Named(named))
    }
}

/// A tensor as headers describe it.
#[derive(Deserialize)]
struct Info {
    dtype: safetensors::Dtype,
    shape: Shape,
    /// First byte and end, counted from the end of the header.
    data_offsets: (u64, u64),
}

struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shape")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if shape.len() == MOST_DIMENSIONS {
                let message = format!("a tensor of more than {MOST_DIMENSIONS} dimensions");
                return Err(A::Error::custom(message));
            }
            shape.push(size);
        }
        Ok(Shape(shape))
    }
}

/// Reads the places of all tensors from a header. `data` is the part of the file behind the
/// header, which the tensors must fill, one behind the other.
///
/// # Errors
/// The reason why the header can't be used, in words.
pub(super) fn places(
    json: &[u8],
    data: Range<u64>,
) -> Result<BTreeMap<String, TensorPlace>, String> {
    let header: Named<Info> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let place = |(name, info): (String, Info)| {
        let at = |offset: u64| data.start.checked_add(offset);
        let (begin, end) = info.data_offsets;
        let bytes = at(begin).zip(at(end)).map(|(begin, end)| begin..end);
        let Some(bytes) = bytes else {
            return Err(format!("tensor {name} ends beyond any file"));
        };
        let place = TensorPlace {
            dtype: info.dtype.into(),
            shape: info.shape.0,
            bytes,
            interleaved: None,
        };
        Ok((name, (info.dtype.bitsize() as u64, place)))
    };
    let places = header.0.into_iter().map(place);
    let places = places.collect::<Result<BTreeMap<_, _>, _>>()?;
    check(&places, data)?;
    let places = places.into_iter().map(|(name, (_, place))| (name, place));
    Ok(places.collect())
}

/// Checks that tensors, with the bits of their elements, fill `data` without gaps, and have the
/// bytes of their shapes.
fn check(places: &BTreeMap<String, (u64, TensorPlace)>, data: Range<u64>) -> Result<(), String> {
    let mut sorted: Vec<_> = places.iter().collect();
    sorted.sort_unstable_by_key(|(_, (_, place))| (place.bytes.start, place.bytes.end));
    let mut next = data.start;
    for (name, (bits, place)) in sorted {
        let TensorPlace {
            bytes: Range { start, end },
            ..
        } = *place;
        if start != next || end < start {
            return Err(format!(
                "tensor {name} has the bytes {start} to {end}, and the tensors before it end at \
                 {next}"
            ));
        }
        if size(*bits, place) != Some(end - start) {
            return Err(format!(
                "tensor {name} has {} bytes, which are not those of its shape {:?} in {:?}",
                end - start,
                place.shape,
                place.dtype
            ));
        }
        next = end;
    }
    if next != data.end {
        return Err(format!("it should have {next} bytes and has {}", data.end));
    }
    Ok(())
}

/// Bytes of a tensor of this shape; `None` if they are no whole number, or too many to count.
fn size(bits: u64, place: &TensorPlace) -> Option<u64> {
    let multiply = |all: u64, next: &usize| all.checked_mul(u64::try_from(*next).ok()?);
    let elements = place.shape.iter().try_fold(1, multiply)?;
    let bits = elements.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

#[cfg(test)]
mod tests;
