//! Files of a model's folder, which anybody may have filled: only regular ones are opened, none
//! is waited for, and no link leads out of the folder.
//!
//! One kind of link may: the Hugging Face Hub's cache keeps a repository's files in `blobs`, and
//! `snapshots/REVISION` is a folder of links to them. The links of such a folder may lead anywhere
//! inside their repository.

#![forbid(unsafe_code)]

mod patience;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use patience::still_waited_for;
pub use patience::{LONGEST_LOOK, within};

/// Read at a time, before it is asked whether somebody still waits.
const PIECE: u64 = 1 << 20;

/// The most bytes of a file that describes a model: `config.json` and the like.
pub const LARGEST_CONFIG: u64 = 16 << 20;

/// The most bytes of an index of weight files, or of the headers of them all.
pub const LARGEST_INDEX: u64 = 64 << 20;

/// The most bytes of a tokenizer.
pub const LARGEST_TOKENIZER: u64 = 256 << 20;

/// Opens the regular file `name` of `folder`; neither a pipe nor a device is waited for.
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
    let file = match beneath(folder, Path::new(name)) {
        Err(error) if leads_out(&error) => match repository(folder) {
            Some((repository, snapshot)) => beneath(&repository, &snapshot.join(name)),
            None => Err(error),
        },
        opened => opened,
    };
    let file = file.map_err(|error| match leads_out(&error) {
        true => io::Error::other(
            "it is a link out of its folder, and those are not followed; put the file itself there",
        ),
        false => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Reads the file `name` of `folder`, which may have `most` bytes.
///
/// # Errors
/// Those of [`open`]; in words where the file is larger, whatever it says of its size.
pub fn read(folder: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let file = open(folder, name)?;
    let too_large = || io::Error::other(format!("it has more than {most} bytes"));
    let size = file.metadata()?.len();
    if size > most {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    read_pieces(file.take(most + 1), &mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Reads to the end, as long as somebody waits for it.
fn read_pieces(mut from: impl Read, into: &mut Vec<u8>) -> io::Result<()> {
    while from.by_ref().take(PIECE).read_to_end(into)? > 0 {
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

/// What a file is opened with: without waiting for a writer, and for reading alone.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Opens `path` below `root`, whose links are followed as long as they stay there.
fn beneath(root: &Path, path: &Path) -> io::Result<File> {
    const TRIES: usize = 16;
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(root, directory, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(&directory, path, FLAGS, Mode::empty(), resolve) {
            Ok(file) => return Ok(file.into()),
            // Something was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Kernels before 5.6, and sandboxes that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return resolved(root, path),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::AGAIN.into())
}

/// As [`beneath`], with the links followed here: whoever changes a folder on the way at the right
/// moment can still lead astray.
fn resolved(root: &Path, path: &Path) -> io::Result<File> {
    let root = root.canonicalize()?;
    let real = root.join(path).canonicalize()?;
    if !real.starts_with(&root) {
        return Err(Errno::XDEV.into());
    }
    let flags = FLAGS.union(OFlags::NOFOLLOW).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    OpenOptions::new().read(true).custom_flags(flags).open(real)
}

fn leads_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}

/// The repository in the Hub's cache that `folder` is a snapshot of, and the snapshot's path there.
fn repository(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let folder = folder.canonicalize().ok()?;
    let snapshots = folder.parent()?;
    let repository = snapshots.parent()?;
    let is_one =
        snapshots.file_name() == Some(OsStr::new("snapshots")) && repository.join("blobs").is_dir();
    let snapshot = folder.strip_prefix(repository).ok()?.to_owned();
    is_one.then(|| (repository.to_owned(), snapshot))
}

#[cfg(test)]
mod tests;
