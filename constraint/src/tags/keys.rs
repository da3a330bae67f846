//! Reading of objects, with an error for keys that nobody has read.

use serde_json::{Map, Value};

use super::rules::Result;
use super::tree::{Place, shown};

/// Keys of an object that are not read yet.
pub(super) struct Keys<'a> {
    /// Place of the object.
    pub place: &'a Place,
    fields: &'a Map<String, Value>,
    read: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    /// Begins to read an object.
    pub fn new(value: &'a Value, place: &'a Place) -> Result<Self> {
        let fields = value.as_object();
        Ok(Self {
            fields: fields.ok_or_else(|| place.refuse("expected an object"))?,
            place,
            read: Vec::new(),
        })
    }

    /// Takes a value that is not null.
    pub fn take(&mut self, key: &'static str) -> Option<(Place, &'a Value)> {
        self.read.push(key);
        let value = self.fields.get(key).filter(|value| !value.is_null())?;
        Some((self.place.below(key), value))
    }

    /// True if a key has this number.
    pub fn has(&self, key: &str, number: i64) -> bool {
        let value = self.fields.get(key).and_then(Value::as_i64);
        value == Some(number)
    }

    /// Takes a value that must be there.
    pub fn needed(&mut self, key: &'static str) -> Result<(Place, &'a Value)> {
        let value = self.take(key);
        value.ok_or_else(|| self.place.refuse(format!("expected '{key}'")))
    }

    /// Takes a text that must be there.
    pub fn text(&mut self, key: &'static str) -> Result<String> {
        match self.needed(key)? {
            (_, Value::String(text)) => Ok(text.clone()),
            (at, _) => Err(at.refuse("expected a text")),
        }
    }

    /// Takes a truth value.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<(Place, bool)>> {
        match self.take(key) {
            None => Ok(None),
            Some((at, Value::Bool(value))) => Ok(Some((at, *value))),
            Some((at, _)) => Err(at.refuse("it must be true or false")),
        }
    }

    /// Takes a number from 0 to `most`.
    pub fn number(&mut self, key: &'static str, most: u64) -> Result<Option<u64>> {
        match self.take(key) {
            None => Ok(None),
            Some((at, value)) => match value.as_u64().filter(|number| *number <= most) {
                Some(number) => Ok(Some(number)),
                None => Err(at.refuse(format!("expected a number of 0 to {most}"))),
            },
        }
    }

    /// Refuses keys that nobody has read.
    pub fn end(self, why: &str) -> Result<()> {
        let mut keys = self.fields.keys();
        match keys.find(|key| !self.read.contains(&key.as_str())) {
            Some(key) => Err(self
                .place
                .below(shown(key))
                .refuse(format!("unknown key: {why}"))),
            None => Ok(()),
        }
    }
}
