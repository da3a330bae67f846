//! GGUF files (llama.cpp's format) as the model folders that they stand for.
//!
//! One file holds a model's description, its tokenizer and its weights. It is read as a folder
//! with a `config.json`, a `tokenizer.json` and tensors in Hugging Face's names, so that no other
//! code knows the format. A file is trusted as little as any other: see [`header`].

mod architecture;
mod bytes;
mod config;
mod error;
mod folder;
mod header;
mod keys;
mod metadata;
mod parts;
mod rope;
#[cfg(test)]
pub(crate) mod samples;
mod tensor_type;
mod tokenizer;

use std::io;
use std::path::{Path, PathBuf};

use crate::on_reader_thread;

pub(crate) use architecture::{Architecture, OUTSIDE, wrong_type};
pub(crate) use error::GgufError;
pub(crate) use folder::read;
pub(crate) use header::{Header, Tensor};
pub(crate) use parts::Parts;
pub(crate) use rope::is_list as is_list_of_divisors;
pub use tensor_type::TensorType;

/// Ending of the files' names.
const ENDING: &str = ".gguf";

/// A GGUF file that stands for a model folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Folder of the file.
    pub folder: PathBuf,
    /// Name of the file.
    pub name: String,
}

impl Place {
    /// Returns the place of the file `path`; `None` if the path is no GGUF file's.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if !name.ends_with(ENDING) {
            return None;
        }
        let (name, own) = (name.to_owned(), path.to_owned());
        // A folder may have any name.
        let is_folder = on_reader_thread(move || Ok(own.is_dir())).unwrap_or(false);
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        (!is_folder).then_some(Self { folder, name })
    }
}

/// Returns true if `path` is a GGUF file, by its name.
pub fn is_gguf(path: &Path) -> bool {
    Place::of(path).is_some()
}

/// Returns true if there is a folder or a GGUF file at `path`: it may hold a model.
pub fn may_be_model(path: &Path) -> bool {
    path.is_dir() || (is_gguf(path) && path.exists())
}

/// Returns the GGUF file that the link `path` leads to; `None` if it is no link, or one of the
/// Hub's cache, whose files have other names. Only who names a link may lead out of its folder.
pub fn linked_gguf(path: &Path) -> Option<PathBuf> {
    let real = path.is_symlink().then(|| path.canonicalize().ok())??;
    let both = is_gguf(path) && is_gguf(&real);
    (both && real.is_file()).then_some(real)
}

/// Returns the path of the file of a model folder that holds `name`: the GGUF file itself, where
/// the folder is one.
pub fn path_of(folder: &Path, name: &str) -> PathBuf {
    match is_gguf(folder) {
        true => folder.to_owned(),
        false => folder.join(name),
    }
}

/// Finds the GGUF file of a folder that has no `config.json`. Of a model that is split over
/// several files, this is the first.
///
/// # Errors
/// Several such models, with the remedy; the errors of reading the folder.
pub fn only_gguf(folder: &Path) -> io::Result<Option<PathBuf>> {
    let folder = folder.to_owned();
    on_reader_thread(move || {
        if !folder.is_dir() || folder.join("config.json").exists() {
            return Ok(None);
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let is_first =
                |name: &str| parts::number_of(name).is_none_or(|(number, _)| number == 1);
            if let Some(name) = name.to_str()
                && name.ends_with(ENDING)
                && !name.starts_with("mmproj")
                && is_first(name)
            {
                found.push(folder.join(name));
            }
        }
        found.sort();
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [first, ..] => Err(io::Error::other(format!(
                "it has {} models in GGUF files: name one of them, such as {}",
                found.len(),
                first.display()
            ))),
        }
    })
}
