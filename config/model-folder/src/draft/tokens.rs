//! Comparison of the numbers of two tokenizers' tokens.

use std::io::ErrorKind;
use std::path::Path;

use lockstep_files::LARGEST_TOKENIZER;
use lockstep_types::ConfigError;

use super::OPTION;
use crate::numbers::numbers;

/// Compares the tokenizers of two models if both have one in their folder.
///
/// # Errors
/// [`ConfigError::File`]: a number means different texts, or a file is damaged.
pub(super) fn compare(draft: &Path, target: &Path) -> Result<(), ConfigError> {
    const NAME: &str = "tokenizer.json";
    let failed = |message: String| ConfigError::file(OPTION, draft, message);
    let read = |folder: &Path| match lockstep_files::read(folder, NAME, LARGEST_TOKENIZER) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(format!("{}: {error}.", folder.join(NAME).display()))),
    };
    let (Some(own), Some(other)) = (read(draft)?, read(target)?) else {
        return Ok(());
    };
    if own == other {
        return Ok(());
    }
    let numbers =
        |bytes: &[u8]| numbers(bytes).map_err(|error| failed(format!("tokenizer.json: {error}.")));
    if numbers(&own)? == numbers(&other)? {
        return Ok(());
    }
    Err(failed(
        "the tokenizer is not the target's: a token's number means another text. Give a model \
         with the target's own tokenizer."
            .into(),
    ))
}
