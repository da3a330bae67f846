//! Secrets from flags, the environment or files.

use std::path::PathBuf;

use super::ConfigError;
use crate::args::{ParallelArgs, ServerArgs};

/// The key that clients must show.
pub(super) fn api_key(args: &ServerArgs) -> Result<Option<String>, ConfigError> {
    secret(
        "--api-key",
        args.api_key.as_deref(),
        "--api-key-file",
        args.api_key_file.as_ref(),
    )
}

/// The key that operators must show. No other client knows it.
pub(super) fn admin_api_key(
    args: &ServerArgs,
    api_key: Option<&str>,
) -> Result<Option<String>, ConfigError> {
    const OPTION: &str = "--admin-api-key-file";
    let file = args.admin_api_key_file.as_ref();
    let key = secret(OPTION, None, OPTION, file)?;
    if key.is_some() && key.as_deref() == api_key {
        return Err(ConfigError::conflict(
            OPTION,
            "--api-key",
            "with one key for both every client would be an operator",
            "Leave the operators' key out, or make another one",
        ));
    }
    Ok(key)
}

/// The secret that nodes share. Only this secret keeps strangers on the network from being a
/// rank, so a secret that can be guessed is refused.
pub(super) fn dist_secret(args: &ParallelArgs) -> Result<Option<String>, ConfigError> {
    const SHORTEST: usize = 16;
    let secret = secret(
        "--dist-secret",
        args.dist_secret.as_deref(),
        "--dist-secret-file",
        args.dist_secret_file.as_ref(),
    )?;
    if secret.as_ref().is_some_and(|text| text.len() < SHORTEST) {
        let option = match args.dist_secret {
            Some(_) => "--dist-secret",
            None => "--dist-secret-file",
        };
        let why = format!("must have {SHORTEST} characters or more");
        let from = shown(args.dist_secret_file.as_ref());
        return Err(ConfigError::value(option, from, why, REMEDY));
    }
    Ok(secret)
}

const REMEDY: &str = "Make one with `openssl rand -hex 32`";

fn secret(
    option: &'static str,
    text: Option<&str>,
    file_option: &'static str,
    file: Option<&PathBuf>,
) -> Result<Option<String>, ConfigError> {
    let (option, text) = match (text, file) {
        (Some(_), Some(_)) => {
            let why = "only one of them can be meant";
            return Err(ConfigError::conflict(
                option,
                file_option,
                why,
                "Leave one of them out",
            ));
        }
        (None, None) => return Ok(None),
        (Some(text), None) => (option, text.to_owned()),
        (None, Some(path)) => match std::fs::read_to_string(path) {
            Ok(text) => (file_option, text.trim_end_matches(['\r', '\n']).to_owned()),
            Err(error) => {
                let (path, message) = (path.clone(), error.to_string());
                return Err(ConfigError::File {
                    option: file_option,
                    path,
                    message,
                });
            }
        },
    };
    // The secret travels in a header.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = "must be printable ASCII without spaces, and not empty";
        return Err(ConfigError::value(option, shown(file), why, REMEDY));
    }
    Ok(Some(text))
}

/// Source of a secret, for people; the secret itself is never printed.
fn shown(file: Option<&PathBuf>) -> String {
    file.map_or("(hidden)".to_owned(), |path| path.display().to_string())
}
