//! Keys of a model's architecture.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::architecture::Architecture;
use super::error::GgufError;
use super::header::Header;
use super::metadata;
use super::parts::Parts;

/// Keys of an architecture that change no result.
const HARMLESS: [&str; 3] = ["rope.scaling.finetuned", "tensor_data_layout", "vocab_size"];

/// Keys of a model's architecture. Those that were asked for are remembered, since any other may
/// change results.
pub(super) struct Keys<'p> {
    /// The model's files.
    pub parts: &'p Parts,
    /// The header with the keys.
    pub header: &'p Header,
    /// The architecture.
    pub architecture: &'static Architecture,
    asked: RefCell<BTreeSet<String>>,
}

impl<'p> Keys<'p> {
    /// Finds the keys of a model.
    ///
    /// # Errors
    /// The errors of [`Architecture::of`].
    pub fn of(parts: &'p Parts) -> Result<Self, GgufError> {
        let header = parts.first();
        Ok(Self {
            parts,
            header,
            architecture: Architecture::of(header)?,
            asked: RefCell::default(),
        })
    }

    /// Returns the whole name of a key, which was asked for.
    pub fn key(&self, key: &str) -> String {
        let key = format!("{}.{key}", self.architecture.name);
        self.asked.borrow_mut().insert(key.clone());
        key
    }

    /// Returns a whole number, zero or above.
    ///
    /// # Errors
    /// [`GgufError::Damaged`] for another value; likewise for the functions below.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.header.unsigned(&self.key(key))
    }

    /// Returns a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.header.number(&self.key(key))
    }

    /// Returns true or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.header.flag(&self.key(key))
    }

    /// Returns a text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.header.text(&self.key(key))
    }

    /// Returns a size that must be there. If layers have sizes of their own, they must be equal.
    pub fn size(&self, key: &str) -> Result<u64, GgufError> {
        let whole = self.key(key);
        match self.header.value(&whole) {
            Some(metadata::Value::List { .. }) => {
                let list = self.header.numbers(&whole)?.unwrap_or_default();
                match list.split_first() {
                    Some((first, rest)) if rest.iter().all(|own| own == first) => Ok(*first as u64),
                    _ => Err(self.unserved(key, "all layers must have one size")),
                }
            }
            _ => {
                let size = self.header.unsigned(&whole)?;
                size.ok_or_else(|| self.header.missing(&whole))
            }
        }
    }

    /// The error for a key's value that is not served.
    pub fn unserved(&self, key: &str, remedy: &str) -> GgufError {
        let reason = format!(
            "its key {}.{key} asks for something that is not served: {remedy}",
            self.architecture.name
        );
        GgufError::unserved(&self.header.name, reason)
    }

    /// Refuses keys that nobody asked for and that say something.
    pub fn check_rest(&self) -> Result<(), GgufError> {
        let asked = self.asked.borrow();
        let prefix = format!("{}.", self.architecture.name);
        for key in self.header.keys() {
            let Some(own) = key.strip_prefix(&prefix) else {
                continue;
            };
            if !asked.contains(key) && !HARMLESS.contains(&own) && self.says(key) {
                return Err(
                    self.unserved(own, "it may change results; use the model's safetensors")
                );
            }
        }
        Ok(())
    }

    fn says(&self, key: &str) -> bool {
        match self.header.value(key) {
            Some(metadata::Value::Unsigned(0) | metadata::Value::Flag(false)) | None => false,
            Some(metadata::Value::Float(number)) => *number != 0.0,
            Some(metadata::Value::List { count, .. }) => *count > 0,
            Some(_) => true,
        }
    }

    /// Returns true if a layer has the tensor `own`.
    pub fn has(&self, own: &str) -> bool {
        self.parts.tensor(&format!("blk.0.{own}")).is_some()
    }
}
