//! The token that the tokenizer itself ends texts with.

use std::io::ErrorKind;
use std::path::Path;

use lockstep_files::{LARGEST_TOKENIZER, shown};
use lockstep_types::ModelConfigError;
use serde_json::Value;

use crate::numbers::numbers;
use crate::raw::Raw;

/// Key of the token.
const ROLE: &str = "eos_token";

/// The end token of a folder's tokenizer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndToken {
    pub(crate) text: String,
    /// The token's number; `None` if the vocabulary lacks it.
    pub(crate) id: Option<u32>,
}

/// The end token that a folder's tokenizer names, if any. Fine-tuned models often name the end
/// of a turn only here, and keep the base model's ids in `config.json`.
///
/// # Errors
/// [`ModelConfigError`]: a file can't be read, or the token is neither a text nor an added
/// token.
pub(crate) fn end_token(folder: &Path) -> Result<Option<EndToken>, ModelConfigError> {
    let config = Raw::read_optional(folder, "tokenizer_config.json")?;
    let mut text = config.as_ref().map(token).transpose()?.flatten();
    if text.is_none() {
        // Older repositories have the tokens' roles only here.
        let roles = Raw::read_optional(folder, "special_tokens_map.json")?;
        text = roles.as_ref().map(token).transpose()?.flatten();
    }
    let Some(text) = text else {
        return Ok(None);
    };
    let id = match in_vocabulary(folder, &text)? {
        None => config.and_then(|config| added(&config, &text)),
        id => id,
    };
    Ok(Some(EndToken { text, id }))
}

/// The token's text. The file has it as a text or in an object.
fn token(config: &Raw) -> Result<Option<String>, ModelConfigError> {
    match config.get(ROLE) {
        None => Ok(None),
        Some(value) => match value.as_str().or_else(|| value.get("content")?.as_str()) {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(config.wrong(ROLE, format!("is {value}, not a token's text"))),
        },
    }
}

/// The number of a token in `tokenizer.json`, if it is there. The model's own vocabulary comes
/// first, as in the `tokenizers` library.
fn in_vocabulary(folder: &Path, token: &str) -> Result<Option<u32>, ModelConfigError> {
    const NAME: &str = "tokenizer.json";
    let path = folder.join(NAME);
    let bytes = match lockstep_files::read(folder, NAME, LARGEST_TOKENIZER) {
        Ok(bytes) => bytes,
        // Code that needs a tokenizer reports that it is missing.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let message = error.to_string();
            return Err(ModelConfigError::Read { path, message });
        }
    };
    let (vocabulary, added) = numbers(&bytes).map_err(|error| {
        let message = shown(&error.to_string());
        ModelConfigError::Malformed { path, message }
    })?;
    let mut added = added.iter();
    let own = vocabulary.get(token).copied();
    let id = own.or_else(|| Some(*added.find(|(_, text)| *text == token)?.0));
    Ok(id.and_then(|id| u32::try_from(id).ok()))
}

/// The number of a token that only `added_tokens_decoder` has.
fn added(config: &Raw, token: &str) -> Option<u32> {
    let Value::Object(tokens) = config.get("added_tokens_decoder")? else {
        return None;
    };
    let is_it = |value: &Value| value.get("content").and_then(Value::as_str) == Some(token);
    let mut tokens = tokens.iter();
    tokens.find(|(_, value)| is_it(value))?.0.parse().ok()
}

#[cfg(test)]
mod tests;
