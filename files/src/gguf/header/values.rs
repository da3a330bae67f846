//! Values of a header by the types that readers expect.

use super::Header;
use crate::gguf::error::GgufError;
use crate::gguf::metadata::{TEXT, Value, scalar, width};

/// Most items of a list that is read. Lists of tokens are the longest.
pub(in crate::gguf) const MOST_ITEMS: usize = 1 << 22;

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
        self.check_count(key, count)?;
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
            Some(Value::List { kind, count, place }) if *kind != TEXT => {
                self.check_count(key, *count)?;
                (*kind, place)
            }
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

    /// Refuses a list that would take far more memory than its bytes.
    fn check_count(&self, key: &str, count: usize) -> Result<(), GgufError> {
        match count > MOST_ITEMS {
            true => Err(self.wrong(key, &format!("has {count} items, more than {MOST_ITEMS}"))),
            false => Ok(()),
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
