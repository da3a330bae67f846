//! Typed access to a JSON object, with errors that name the key.

use std::path::{Path, PathBuf};

use lockstep_files::{LARGEST_CONFIG, is_gguf, path_of, shown};
use serde_json::{Map, Value};

use lockstep_types::ModelConfigError;

/// Limit of sizes. No size in a served model comes near it; larger ones are damage and would
/// overflow products of sizes.
const LARGEST: u64 = 1 << 31;

/// A JSON object, with the path of its file and the keys that lead to it.
#[derive(Clone)]
pub(crate) struct Raw {
    path: PathBuf,
    prefix: String,
    map: Map<String, Value>,
}

impl Raw {
    /// Reads the file `name` of a folder.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self, ModelConfigError> {
        let path = path_of(folder, name);
        match lockstep_files::read(folder, name, LARGEST_CONFIG) {
            Ok(bytes) => Self::parse(path, &bytes),
            Err(error) if is_gguf(folder) => {
                // The error begins with the name of the file; a model may have several.
                let file = folder.with_file_name(error.to_string());
                let message = shown(&file.display().to_string());
                Err(ModelConfigError::Gguf { message })
            }
            Err(error) => {
                let message = error.to_string();
                Err(ModelConfigError::Read { path, message })
            }
        }
    }

    /// Reads a file like [`Self::read`]; `None` if there is no such file.
    pub(crate) fn read_optional(
        folder: &Path,
        name: &str,
    ) -> Result<Option<Self>, ModelConfigError> {
        match lockstep_files::contains(folder, name) {
            Ok(false) => Ok(None),
            _ => Self::read(folder, name).map(Some),
        }
    }

    fn parse(path: PathBuf, json: &[u8]) -> Result<Self, ModelConfigError> {
        match serde_json::from_slice(&lockstep_files::quoted(json)) {
            Ok(map) => Ok(Self {
                path,
                prefix: String::new(),
                map,
            }),
            Err(error) => {
                let message = shown(&error.to_string());
                Err(ModelConfigError::Malformed { path, message })
            }
        }
    }

    /// The value; `None` if absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Sets the value of a key.
    pub(crate) fn put(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    /// Adds the keys of `values` that are absent, except those in `except`. A key with null is
    /// not absent.
    pub(crate) fn fill(&mut self, values: Value, except: &[&str]) {
        let Value::Object(values) = values else {
            return;
        };
        for (key, value) in values {
            if !except.contains(&key.as_str()) {
                self.map.entry(key).or_insert(value);
            }
        }
    }

    /// Returns the keys whose values turn something on. Null, false, zero and empty values turn
    /// something off.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        let says = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            Value::String(text) => !text.is_empty(),
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::Bool(true) => true,
        };
        let keys = self.map.iter().filter(move |(_, value)| says(value));
        keys.map(|(key, _)| key.as_str())
    }

    /// A size: a whole number, at least 1.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, ModelConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size @ 1..LARGEST) => Ok(Some(size as usize)),
            _ => Err(self.wrong(key, format!("is {value}, not a size"))),
        }
    }

    /// A count: a whole number, also 0.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, ModelConfigError> {
        match self.get(key).map(|value| (value, value.as_u64())) {
            None => Ok(None),
            Some((_, Some(count @ 0..LARGEST))) => Ok(Some(count as usize)),
            Some((value, _)) => Err(self.wrong(key, format!("is {value}, not a count"))),
        }
    }

    /// Two sizes.
    pub(crate) fn pair(&self, key: &str) -> Result<Option<[usize; 2]>, ModelConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let size = |value: &Value| match value.as_u64() {
            Some(size @ 1..LARGEST) => Some(size as usize),
            _ => None,
        };
        match value.as_array().map(Vec::as_slice) {
            Some([first, second]) => size(first).zip(size(second)),
            _ => None,
        }
        .map(|(first, second)| Some([first, second]))
        .ok_or_else(|| self.wrong(key, format!("is {value}, not two sizes")))
    }

    /// A size that must exist.
    pub(crate) fn required(&self, key: &str) -> Result<usize, ModelConfigError> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "is missing"))
    }

    /// A number above zero.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ModelConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number > 0.0 && number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong(key, format!("is {value}, not a number above zero"))),
        }
    }

    /// Numbers above zero.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ModelConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = |value: &Value| {
            let number = value.as_f64();
            number.filter(|number| *number > 0.0 && number.is_finite())
        };
        let numbers = value.as_array().map(|all| all.iter().map(number).collect());
        match numbers.flatten() {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(self.wrong(key, "is not a list of numbers above zero")),
        }
    }

    /// True or false, or `default` if absent.
    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, ModelConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.wrong(key, format!("is {value}, not true or false"))),
        }
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ModelConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.wrong(key, format!("is {value}, not a text"))),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<&str>, ModelConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let list = value.as_array();
        match list.and_then(|list| list.iter().map(Value::as_str).collect()) {
            Some(texts) => Ok(texts),
            None => Err(self.wrong(key, format!("is {value}, not a list of texts"))),
        }
    }

    /// A nested object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, ModelConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                map: map.clone(),
            })),
            Some(value) => Err(self.wrong(key, format!("is {value}, not an object"))),
        }
    }

    /// One token id, or a list of ids. The id -1 counts as none: many files have it for a
    /// missing token.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Vec<u32>, ModelConfigError> {
        let wrong = |value: &Value| self.wrong(key, format!("is {value}, not a token id"));
        let id = |value: &Value| {
            value
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| wrong(value))
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(value) if value.as_i64() == Some(-1) => Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.iter().map(id).collect(),
            Some(value) => Ok(vec![id(value)?]),
        }
    }

    /// The error for a senseless value. The value is escaped, since the file's author must not
    /// control the terminal that shows it.
    pub(crate) fn wrong(&self, key: &str, message: impl Into<String>) -> ModelConfigError {
        let key = format!("{}{key}", self.prefix);
        ModelConfigError::Key {
            path: self.path.clone(),
            key,
            message: shown(&message.into()),
        }
    }

    /// The error for a value that is not served.
    pub(crate) fn unsupported(&self, key: &str, remedy: impl Into<String>) -> ModelConfigError {
        ModelConfigError::Unsupported {
            path: self.path.clone(),
            key: format!("{}{key}", self.prefix),
            value: self
                .get(key)
                .map_or_else(|| "absent".into(), |value| shown(&value.to_string())),
            remedy: remedy.into(),
        }
    }
}
