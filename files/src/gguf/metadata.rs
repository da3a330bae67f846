//! Values of a header's keys.

use std::ops::Range;

use super::bytes::{Cursor, Fault};

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
pub(super) const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Returns the bytes of a type whose values have a fixed size; `None` for others.
pub(super) fn width(kind: u32) -> Option<u64> {
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
pub(super) fn scalar(kind: u32, bytes: &[u8]) -> Option<Value> {
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
