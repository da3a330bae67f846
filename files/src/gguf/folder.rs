//! The files of the model folder that a GGUF file stands for.

use std::io;

use serde_json::Value;

use super::error::GgufError;
use super::parts::Parts;
use super::{Place, config, tokenizer};
use crate::too_large;

/// Returns the content of the file `name`, which may have up to `most` bytes.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] for names of other files; in words if the GGUF file can't be used.
pub(crate) fn read(place: &Place, name: &str, most: u64) -> io::Result<Vec<u8>> {
    type Maker = fn(&Parts) -> Result<Value, GgufError>;
    let make: Maker = match name {
        "config.json" => config::config,
        "generation_config.json" => config::generation,
        "tokenizer_config.json" => tokenizer::config,
        "tokenizer.json" => {
            let parts = Parts::open(place)?;
            return bounded(tokenizer::tokenizer(parts.first())?, most);
        }
        _ => return Err(io::ErrorKind::NotFound.into()),
    };
    let json = make(&Parts::open(place)?)?;
    bounded(json.to_string().into_bytes(), most)
}

fn bounded(bytes: Vec<u8>, most: u64) -> io::Result<Vec<u8>> {
    match bytes.len() as u64 > most {
        true => Err(too_large(most)),
        false => Ok(bytes),
    }
}
