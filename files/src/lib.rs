//! Files of a model's folder, which anybody may have filled. Only regular files are opened, no
//! file is waited for, and no link leads out of the folder.
//!
//! There is one exception. The Hugging Face Hub's cache keeps a repository's files in `blobs`,
//! and `snapshots/REVISION` is a folder of links to them. Links of such a folder, and of
//! folders that it links to, may lead anywhere inside their repository. Links in `blobs` may
//! lead to files of the store that the cache's repositories share.
//!
//! A GGUF file stands for a folder: see [`is_gguf`].

#![forbid(unsafe_code)]

mod beneath;
mod folder;
mod gguf;
mod json;
mod kept;
mod reader_thread;
mod shared;
mod shown;
mod time_limits;
pub mod weights;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};
use std::sync::Arc;

use folder::Folder;
use reader_thread::PIECE;
use time_limits::still_waited_for;

pub use gguf::{TensorType, is_gguf, linked_gguf, may_be_model, only_gguf, path_of};
pub use json::quoted;
pub use kept::Kept;
pub use reader_thread::{
    LONGEST_STALL, TimeLimits, close, on_reader_thread, patiently, read_exact_at,
};
pub use shown::{shown, shown_note};
pub use time_limits::{LONGEST_LOOK, within};

/// Largest number of bytes of a file that describes a model, such as `config.json`.
pub const LARGEST_CONFIG: u64 = 16 << 20;

/// Largest number of bytes of an index of weight files, or of the headers of all of them.
pub const LARGEST_INDEX: u64 = 64 << 20;

/// Largest number of bytes of a tokenizer.
pub const LARGEST_TOKENIZER: u64 = 256 << 20;

/// Largest number of files that a model's weights may be spread over. Each file is kept open
/// and mapped while it is read.
pub const MOST_WEIGHT_FILES: usize = 512;

/// Opens the regular file `name` of `folder`, without waiting for a pipe or a device. If the
/// folder is [`Kept`], the file is looked for there, wherever the folder's path leads now.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if there is no such file. Other errors say in words that it is
/// no regular file, or a link out of the folder.
pub fn open(folder: &Path, name: &str) -> io::Result<File> {
    still_waited_for()?;
    let inside = |part| matches!(part, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(inside) {
        return Err(io::Error::other(format!("{name:?} is no file of a folder")));
    }
    let (folder, name) = (folder.to_owned(), name.to_owned());
    on_reader_thread(move || {
        let folder = match kept::find(&folder) {
            Some(kept) => kept,
            None => Arc::new(Folder::at(&folder)?),
        };
        folder.open(&name)
    })
}

/// Reads the file `name` of `folder`, which may have up to `most` bytes. Of a GGUF file in place of
/// the folder, the file is made.
///
/// # Errors
/// The errors of [`open`]; in words if the file is larger, whatever size the file system tells.
pub fn read(folder: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    if let Some(place) = gguf::Place::of(folder) {
        return gguf::read(&place, name, most);
    }
    let (folder, name) = (folder.to_owned(), name.to_owned());
    on_reader_thread(move || read_here(&folder, &name, most))
}

/// Returns true if `folder`, or a GGUF file in its place, has the file `name`.
///
/// # Errors
/// The errors of [`open`] but for a missing file.
pub fn contains(folder: &Path, name: &str) -> io::Result<bool> {
    let opened = match is_gguf(folder) {
        true => read(folder, name, LARGEST_TOKENIZER).map(drop),
        false => open(folder, name).map(drop),
    };
    match opened {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_here(folder: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let file = open(folder, name)?;
    let size = file.metadata()?.len();
    if size > most {
        return Err(too_large(most));
    }
    read_at_most(file, size, most)
}

/// Reads to the end, but no more than one byte beyond `most`, whatever `size` says.
fn read_at_most(from: impl Read, size: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    read_pieces(from.take(most + 1), &mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(too_large(most)),
        false => Ok(bytes),
    }
}

fn too_large(most: u64) -> io::Error {
    io::Error::other(format!("it has more than {most} bytes"))
}

/// Reads to the end, as long as somebody waits.
fn read_pieces(mut from: impl Read, into: &mut Vec<u8>) -> io::Result<()> {
    while from.by_ref().take(PIECE as u64).read_to_end(into)? > 0 {
        still_waited_for()?;
    }
    Ok(())
}

/// Reads a file like [`read`], as a text in UTF-8; `None` if there is no such file.
///
/// # Errors
/// The errors of [`read`]; [`io::ErrorKind::InvalidData`] for a file that is not UTF-8.
pub fn read_text(folder: &Path, name: &str, most: u64) -> io::Result<Option<String>> {
    match read(folder, name, most) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
