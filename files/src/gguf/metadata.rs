//! Values of a header's keys.

use std::ops::Range;

use super::bytes::{Cursor, Fault};
use super::error::GgufError;
use super::header::Header;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// A whole number, zero or above.
    Unsigned(u64),
    /// A whole number below zero.
    Negative(i64),
    /// A float.
    Float(f64),
    /// True or false.
    Flag(bool),
    /// The place of a text.
    Text(Range<usize>),
    /// A list.
    List {
        /// Type of the items.
        kind: u32,
        /// Number of items.
        count: usize,
        /// Place of the items.
        place: Range<usize>,
    },
}

/// Numbers of the types of texts and lists.
const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Returns the bytes of a type whose values have a fixed size; `None` for others.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Takes the type of a value and the value.
pub(super) fn take(cursor: &mut Cursor<'_>) -> Result<Value, Fault> {
    match cursor.u32()? {
        TEXT => Ok(Value::Text(cursor.text()?)),
        LIST => list(cursor),
        kind => {
            let width = width(kind).ok_or_else(|| format!("it has the unknown type {kind}"))?;
            let place = cursor.take(width)?;
            scalar(kind, cursor.bytes(place))
                .ok_or_else(|| "it is neither true nor false".to_owned().into())
        }
    }
}

fn list(cursor: &mut Cursor<'_>) -> Result<Value, Fault> {
    let (kind, count) = (cursor.u32()?, cursor.u64()?);
    let start = cursor.at() as usize;
    match (kind, width(kind)) {
        (_, Some(width)) => {
            let bytes = count.checked_mul(width);
            cursor.take(bytes.ok_or_else(|| format!("it has {count} items"))?)?;
        }
        // Each text has eight bytes at least.
        (TEXT, None) if count > cursor.rest() / 8 => {
            return Err(format!("it should have {count} texts, and the file ends before").into());
        }
        (TEXT, None) => {
            for _ in 0..count {
                cursor.text()?;
            }
        }
        (other, None) => {
            return Err(format!("it is a list of items of the unknown type {other}").into());
        }
    }
    Ok(Value::List {
        kind,
        count: count as usize,
        place: start..cursor.at() as usize,
    })
}

/// Decodes a value of fixed size; `None` for a flag that is neither true nor false.
fn scalar(kind: u32, bytes: &[u8]) -> Option<Value> {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(wide);
    let signed = |value: i64| match u64::try_from(value) {
        Ok(value) => Value::Unsigned(value),
        Err(_) => Value::Negative(value),
    };
    Some(match kind {
        0 | 2 | 4 | 10 => Value::Unsigned(word),
        1 => signed(i64::from(word as u8 as i8)),
        3 => signed(i64::from(word as u16 as i16)),
        5 => signed(i64::from(word as u32 as i32)),
        11 => signed(word as i64),
        6 => Value::Float(plain(f32::from_bits(word as u32))),
        12 => Value::Float(f64::from_bits(word)),
        7 => match word {
            0 => Value::Flag(false),
            1 => Value::Flag(true),
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns the number that people wrote: 0.1, not the value nearest to it among 32-bit floats.
fn plain(float: f32) -> f64 {
    float.to_string().parse().unwrap_or(f64::from(float))
}

impl Header {
    /// Returns a whole number, zero or above.
    ///
    /// # Errors
    /// [`GgufError::Damaged`] for another value; likewise for the functions below.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) => Ok(Some(*number)),
            Some(_) => Err(self.wrong(key, "is no whole number from zero on")),
        }
    }

    /// Returns a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        let number = match self.value(key) {
            None => return Ok(None),
            Some(Value::Unsigned(number)) => Some(*number as f64),
            Some(Value::Negative(number)) => Some(*number as f64),
            Some(Value::Float(number)) => Some(*number),
            Some(_) => None,
        };
        match number.filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, "is no finite number")),
        }
    }

    /// Returns true or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "is neither true nor false")),
        }
    }

    /// Returns a text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(place)) => match std::str::from_utf8(self.bytes(place)) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.wrong(key, "is not UTF-8")),
            },
            Some(_) => Err(self.wrong(key, "is no text")),
        }
    }

    /// Returns the texts of a list.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        let (count, place) = match self.value(key) {
            None => return Ok(None),
            Some(Value::List {
                kind: TEXT,
                count,
                place,
            }) => (*count, place),
            Some(_) => return Err(self.wrong(key, "is no list of texts")),
        };
        let mut rest = self.bytes(place);
        let mut texts = Vec::with_capacity(count);
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u64::from_le_bytes(*length) as usize;
            let (text, behind) = behind.split_at_checked(length).unwrap_or_default();
            let text = std::str::from_utf8(text);
            texts.push(text.map_err(|_| self.wrong(key, "has a text that is not UTF-8"))?);
            rest = behind;
        }
        Ok(Some(texts))
    }

    /// Returns the values of a list of numbers or flags.
    pub fn list(&self, key: &str) -> Result<Option<Vec<Value>>, GgufError> {
        let (kind, place) = match self.value(key) {
            None => return Ok(None),
            Some(Value::List { kind, place, .. }) if *kind != TEXT => (*kind, place),
            Some(_) => return Err(self.wrong(key, "is no list of numbers")),
        };
        let width = width(kind).unwrap_or(1) as usize;
        let items = self.bytes(place).chunks_exact(width);
        let items = items.map(|item| scalar(kind, item)).collect::<Option<_>>();
        match items {
            Some(items) => Ok(Some(items)),
            None => Err(self.wrong(key, "has an item that is neither true nor false")),
        }
    }

    /// Returns finite numbers of a list.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, GgufError> {
        let Some(items) = self.list(key)? else {
            return Ok(None);
        };
        let number = |value: Value| match value {
            Value::Unsigned(number) => Some(number as f64),
            Value::Negative(number) => Some(number as f64),
            Value::Float(number) => Some(number).filter(|number| number.is_finite()),
            Value::Flag(_) | Value::Text(_) | Value::List { .. } => None,
        };
        match items.into_iter().map(number).collect() {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(self.wrong(key, "has an item that is no finite number")),
        }
    }

    /// The error for a value that makes no sense.
    pub fn wrong(&self, key: &str, reason: &str) -> GgufError {
        GgufError::damaged(&self.name, format!("its key {key} {reason}"))
    }

    /// The error for a key that must be there.
    pub fn missing(&self, key: &str) -> GgufError {
        self.wrong(key, "is missing")
    }
}
