//! Files of a model's folder, which anybody may have filled: only regular ones are opened, none
//! is waited for, and no link leads out of the folder.
//!
//! One kind of link may: the Hugging Face Hub's cache keeps a repository's files in `blobs`, and
//! `snapshots/REVISION` is a folder of links to them. The links of such a folder, and
//! of folders that it links to, may lead anywhere inside their repository; and links in
//! `blobs` to files of the store that the cache's repositories share.

#![forbid(unsafe_code)]

mod aside;
mod beneath;
mod folder;
mod json;
mod kept;
mod patience;
mod shared;
mod shown;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};
use std::sync::Arc;

use aside::PIECE;
use folder::Folder;
use patience::still_waited_for;

pub use aside::{LONGEST_STALL, Patience, aside, close, patiently, read_exact_at};
pub use json::quoted;
pub use kept::Kept;
pub use patience::{LONGEST_LOOK, within};
pub use shown::{shown, shown_note};

/// The most bytes of a file that describes a model: `config.json` and the like.
pub const LARGEST_CONFIG: u64 = 16 << 20;

/// The most bytes of an index of weight files, or of the headers of them all.
pub const LARGEST_INDEX: u64 = 64 << 20;

/// The most bytes of a tokenizer.
pub const LARGEST_TOKENIZER: u64 = 256 << 20;

/// The most files that a model's weights may be spread over: each is kept open and mapped while
/// it is read.
pub const MOST_WEIGHT_FILES: usize = 512;

/// Opens the regular file `name` of `folder`; neither a pipe nor a device is waited for. Where the
/// folder is [`Kept`], the file is looked for there, wherever its path leads now.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] where there is none. In words where it is no regular file, or a
/// link that leads out of the folder.
pub fn open(folder: &Path, name: &str) -> io::Result<File> {
    still_waited_for()?;
    let inside = |part| matches!(part, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(inside) {
        return Err(io::Error::other(format!("{name:?} is no file of a folder")));
    }
    let (folder, name) = (folder.to_owned(), name.to_owned());
    aside(move || {
        let folder = match kept::find(&folder) {
            Some(kept) => kept,
            None => Arc::new(Folder::at(&folder)?),
        };
        folder.open(&name)
    })
}

/// Reads the file `name` of `folder`, which may have `most` bytes.
///
/// # Errors
/// Those of [`open`]; in words where the file is larger, whatever it says of its size.
pub fn read(folder: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let (folder, name) = (folder.to_owned(), name.to_owned());
    aside(move || read_here(&folder, &name, most))
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

/// Reads to the end, as long as somebody waits for it.
fn read_pieces(mut from: impl Read, into: &mut Vec<u8>) -> io::Result<()> {
    while from.by_ref().take(PIECE as u64).read_to_end(into)? > 0 {
        still_waited_for()?;
    }
    Ok(())
}

/// As [`read`], for a text in UTF-8; `None` where there is no such file.
///
/// # Errors
/// Those of [`read`]; [`io::ErrorKind::InvalidData`] for what is no UTF-8.
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
