//! Parts of error messages.

use std::path::Path;
use std::time::Duration;

use crate::Name;

pub(super) fn folder(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => "the model inside the program".to_owned(),
        false => path.display().to_string(),
    }
}

pub(super) fn said(reason: &str) -> &str {
    match reason {
        "" => "the hub asks for its conditions to be accepted",
        reason => reason.trim_end_matches('.'),
    }
}

pub(super) fn colon(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {}", reason.trim_end_matches('.')),
    }
}

pub(super) fn login(with_token: bool) -> &'static str {
    match with_token {
        true => " with the account of your token.",
        false => ", then give that account's token with HF_TOKEN or `hf auth login`.",
    }
}

pub(super) fn forbidden(with_token: bool) -> &'static str {
    match with_token {
        true => {
            "Give a token of an account that may load it, with the right to read; or look at the \
             proxy and the mirror on the way."
        }
        false => {
            "Give a token with HF_TOKEN or `hf auth login`; or look at the proxy and the mirror \
             on the way."
        }
    }
}

pub(super) fn private(with_token: bool) -> &'static str {
    match with_token {
        true => "; if it is private, the account of your token may not see it.",
        false => "; if it is private, give a token with HF_TOKEN or `hf auth login`.",
    }
}

pub(super) fn wait(after: Option<Duration>) -> String {
    match after {
        Some(after) => format!(" and asks to come back in {} s", after.as_secs()),
        None => String::new(),
    }
}

pub(super) fn limits(with_token: bool) -> &'static str {
    match with_token {
        true => "Start again then: what has come is kept.",
        false => {
            "Start again then: what has come is kept; or give a token with HF_TOKEN, whose limits \
             are higher."
        }
    }
}

pub(super) fn instead(found: &[String]) -> String {
    match found {
        [] => String::new(),
        [one] => format!(", but {one}"),
        [one, others @ ..] => format!(", but {one} and {} like it", others.len()),
    }
}

/// Returns what to do with a GGUF file, if one of the files is one.
pub(super) fn by_path(found: &[String]) -> &'static str {
    match found.iter().any(|name| name.ends_with(".gguf")) {
        true => ", or load a GGUF file of it by `hf download` and give the file's path",
        false => "",
    }
}

pub(super) fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

pub(super) fn more_time(name: &Name, set_by: Option<&'static str>) -> String {
    match set_by {
        Some(option) => {
            format!("give more time with {option}, or run `lockstep pull {name}` before")
        }
        None => "start again: what has come is kept".to_owned(),
    }
}
