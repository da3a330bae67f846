//! A file that has come in part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::HubError;
use crate::answer::Listed;
use crate::cache::{is_file_of, names_in};
use crate::digest::Running;

/// The beginning of a file, beside its blob, under a name that nobody else writes to: some
/// network file systems grant a lock to everybody, and who wrote to the file of another then
/// would damage the blob that it becomes. What has come is left as `HASH.incomplete`, and who
/// renames that goes on with it alone.
pub(crate) struct Part {
    path: PathBuf,
    /// What it is left as.
    left: PathBuf,
    file: File,
    listed: Listed,
    hash: Running,
    length: u64,
    /// How often it was begun anew.
    begun_anew: u32,
    is_done: bool,
}

/// What the names of parts have after the hash, before what nobody guesses.
const OWN: &str = ".lockstep-";
/// What names of parts end in; `hf cache prune` removes them by that.
const END: &str = ".incomplete";

impl Part {
    /// What is there of the file whose blob is `blob`; nothing, if need be.
    pub(crate) fn open(blob: &Path, listed: &Listed) -> Result<Self, HubError> {
        let left = left(blob);
        let (file, path) = fresh(blob).map_err(HubError::cache(blob))?;
        let mut part = Self {
            path,
            left,
            file,
            listed: listed.clone(),
            hash: new_hash(listed),
            length: 0,
            begun_anew: 0,
            is_done: false,
        };
        let gone_on = part.go_on(blob);
        gone_on.map_err(HubError::cache(&part.path))?;
        Ok(part)
    }

    /// Goes on with what is left, or else with what a program had that was killed.
    fn go_on(&mut self, blob: &Path) -> io::Result<()> {
        if is_regular(&self.left) {
            fs::rename(&self.left, &self.path)?;
            self.file = opened(&self.path, OpenOptions::new().append(true))?;
            return self.hash_what_is_there();
        }
        let length = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        let others = others(blob, &self.path)?.into_iter();
        match others.max_by_key(length) {
            // It may live after all: its bytes are copied.
            Some(other) => self.copy(&other),
            None => Ok(()),
        }
    }

    fn hash_what_is_there(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.listed.size {
            self.file.set_len(0)?;
        }
        self.file.rewind()?;
        // Whoever left it may live after all, and write faster than is read here.
        let mut there = (&self.file).take(self.listed.size);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = there.read(&mut buffer)?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
                return Ok(());
            };
            self.hash.update(piece);
            self.length += piece.len() as u64;
        }
    }

    /// Moves the bytes of another part here, as many as the file has.
    fn copy(&mut self, other: &Path) -> io::Result<()> {
        let mut from = match opened(other, &mut OpenOptions::new()) {
            Ok(from) => from.take(self.listed.size),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = from.read(&mut buffer)?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
                break;
            };
            self.append(piece)?;
        }
        remove(other)
    }

    /// Bytes that are there.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether no byte is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.length == self.listed.size
    }

    /// Adds the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let written = self.append(bytes);
        written.map_err(HubError::cache(&self.path))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Throws away what is there.
    pub(crate) fn clear(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0);
        cleared.map_err(HubError::cache(&self.path))?;
        self.hash = new_hash(&self.listed);
        self.length = 0;
        self.begun_anew += 1;
        Ok(())
    }

    /// How often what was there was thrown away.
    pub(crate) fn begun_anew(&self) -> u32 {
        self.begun_anew
    }

    /// What is wrong with the whole, if something is: its hash; or its size on the disk,
    /// where a program wrote to it that knows no locks.
    pub(crate) fn damage(&self) -> Option<String> {
        let hash = self.hash.clone().finish();
        if hash != self.listed.etag {
            return Some(format!(
                "its hash is {hash} and should be {}",
                self.listed.etag
            ));
        }
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        (length != self.listed.size).then(|| format!("{length} bytes were written"))
    }

    /// Makes it the blob that it is a part of.
    pub(crate) fn complete(mut self, blob: &Path) -> Result<(), HubError> {
        self.become_blob(blob).map_err(HubError::cache(blob))
    }

    fn become_blob(&mut self, blob: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        match fs::rename(&self.path, blob) {
            // Parts are removed by who cleans the cache. The bytes are here still.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !is_file_of(blob, self.listed.size) {
                    self.move_to_other(blob)?;
                    fs::rename(&self.path, blob)?;
                }
            }
            renamed => renamed?,
        }
        self.is_done = true;
        for other in others(blob, &self.path)? {
            remove(&other)?;
        }
        Ok(())
    }

    /// Goes on under another name.
    fn move_to_other(&mut self, blob: &Path) -> io::Result<()> {
        let (mut file, path) = fresh(blob)?;
        self.file.rewind()?;
        io::copy(&mut self.file, &mut file)?;
        file.sync_all()?;
        (self.file, self.path) = (file, path);
        Ok(())
    }
}

impl Drop for Part {
    /// Leaves what has come to who goes on. Should that fail, the bytes are copied then.
    fn drop(&mut self) {
        if !self.is_done {
            let _ = match self.length {
                0 => fs::remove_file(&self.path),
                _ => fs::rename(&self.path, &self.left),
            };
        }
    }
}

/// What a part of `blob` is left as.
pub(crate) fn left(blob: &Path) -> PathBuf {
    let mut path = blob.as_os_str().to_owned();
    path.push(END);
    PathBuf::from(path)
}

/// An empty file beside `blob` that nobody else has.
fn fresh(blob: &Path) -> io::Result<(File, PathBuf)> {
    let (folder, prefix) = place(blob);
    let mut options = OpenOptions::new();
    options.read(true).append(true).create_new(true);
    let mut names = tempfile::Builder::new();
    let names = names.prefix(&prefix).suffix(END).rand_bytes(12);
    let made = names.make_in(folder, |path| options.open(path))?;
    made.keep().map_err(|kept| kept.error)
}

/// Parts of `blob` but for the one at `own`.
fn others(blob: &Path, own: &Path) -> io::Result<Vec<PathBuf>> {
    let (folder, prefix) = place(blob);
    let names = names_in(folder)?.into_iter();
    let parts = names.filter(|name| name.starts_with(&prefix) && name.ends_with(END));
    let paths = parts.map(|name| folder.join(name));
    Ok(paths
        .filter(|path| path != own && is_regular(path))
        .collect())
}

/// Bytes that all programs together have of `blob` in parts.
pub(crate) fn bytes_of_parts(blob: &Path) -> u64 {
    let mut parts = others(blob, Path::new("")).unwrap_or_default();
    parts.push(left(blob));
    let lengths = parts
        .iter()
        .map(|part| part.symlink_metadata().map_or(0, |part| part.len()));
    lengths.fold(0, u64::saturating_add)
}

/// Whether it is a file, and neither a link to one, which may be anybody's, nor a pipe.
fn is_regular(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_file())
}

/// Opens what was [`is_regular`], and neither follows nor waits for what has taken its place.
fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// The folder of a blob's parts, and what their names begin with.
fn place(blob: &Path) -> (&Path, String) {
    let name = blob.file_name().unwrap_or_default().to_string_lossy();
    let folder = blob.parent().unwrap_or(Path::new("."));
    (folder, format!("{name}{OWN}"))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Listings are refused that have hashes of other kinds.
fn new_hash(listed: &Listed) -> Running {
    Running::for_etag(&listed.etag, listed.size).unwrap_or_else(|| Running::Sha256(Box::default()))
}

#[cfg(test)]
mod tests;
