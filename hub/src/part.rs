//! A file that is loaded in part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::HubError;
use crate::answer::ListedFile;
use crate::cache::{is_file_of, names_in};
use crate::digest::BlobHash;

/// The beginning of a file, beside its blob, under a name of this process alone. On some
/// network file systems several programs may hold one lock; programs that wrote to one file
/// would then damage the blob. When loading stops, the part is renamed to `HASH.incomplete`.
/// The next program renames that file back to a name of its own, and goes on with it alone.
pub(crate) struct Part {
    path: PathBuf,
    /// Path under which the part is left.
    left: PathBuf,
    file: File,
    listed: ListedFile,
    hash: BlobHash,
    length: u64,
    /// Number of times that the part was begun anew.
    begun_anew: u32,
    is_done: bool,
}

/// Text in the names of parts between the hash and the random characters.
const OWN: &str = ".lockstep-";
/// End of the names of parts, by which `hf cache prune` removes them.
const END: &str = ".incomplete";

impl Part {
    /// Opens a part for the blob at `blob`, with the bytes that are there already, if any.
    pub(crate) fn open(blob: &Path, listed: &ListedFile) -> Result<Self, HubError> {
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

    /// Goes on with the file that was left, or else with the part of a program that was
    /// killed.
    fn go_on(&mut self, blob: &Path) -> io::Result<()> {
        if is_regular(&self.left) {
            fs::rename(&self.left, &self.path)?;
            self.file = opened(&self.path, OpenOptions::new().append(true))?;
            return self.hash_what_is_there();
        }
        let length = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        let others = others(blob, &self.path)?.into_iter();
        match others.max_by_key(length) {
            // The other program may still live: its bytes are copied.
            Some(other) => self.copy(&other),
            None => Ok(()),
        }
    }

    fn hash_what_is_there(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.listed.size {
            self.file.set_len(0)?;
        }
        self.file.rewind()?;
        // The program that left the file may still live, and write faster than it is read
        // here.
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

    /// Copies the bytes of another part here, at most as many as the file has.
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

    /// Number of bytes that are there.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns true if no byte is missing.
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

    /// Throws away the bytes that are there.
    pub(crate) fn clear(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0);
        cleared.map_err(HubError::cache(&self.path))?;
        self.hash = new_hash(&self.listed);
        self.length = 0;
        self.begun_anew += 1;
        Ok(())
    }

    /// Number of times that bytes were thrown away.
    pub(crate) fn begun_anew(&self) -> u32 {
        self.begun_anew
    }

    /// The damage of the whole file, if any: a wrong hash, or a wrong size on the disk
    /// because a program without locks wrote to it.
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

    /// Makes the part the blob at `blob`.
    pub(crate) fn complete(mut self, blob: &Path) -> Result<(), HubError> {
        self.become_blob(blob).map_err(HubError::cache(blob))
    }

    fn become_blob(&mut self, blob: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        match fs::rename(&self.path, blob) {
            // Parts are removed when somebody cleans the cache. This process still has the
            // bytes.
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

    /// Copies the part to another name, and goes on there.
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
    /// Leaves the bytes to the next program. If that fails, the next program copies them.
    fn drop(&mut self) {
        if !self.is_done {
            let _ = match self.length {
                0 => fs::remove_file(&self.path),
                _ => fs::rename(&self.path, &self.left),
            };
        }
    }
}

/// Path under which a part of `blob` is left.
pub(crate) fn left(blob: &Path) -> PathBuf {
    let mut path = blob.as_os_str().to_owned();
    path.push(END);
    PathBuf::from(path)
}

/// An empty file beside `blob` that belongs to this process alone.
fn fresh(blob: &Path) -> io::Result<(File, PathBuf)> {
    let (folder, prefix) = place(blob);
    let mut options = OpenOptions::new();
    options.read(true).append(true).create_new(true);
    let mut names = tempfile::Builder::new();
    let names = names.prefix(&prefix).suffix(END).rand_bytes(12);
    let made = names.make_in(folder, |path| options.open(path))?;
    made.keep().map_err(|kept| kept.error)
}

/// Parts of `blob` other than the one at `own`.
fn others(blob: &Path, own: &Path) -> io::Result<Vec<PathBuf>> {
    let (folder, prefix) = place(blob);
    let names = names_in(folder)?.into_iter();
    let parts = names.filter(|name| name.starts_with(&prefix) && name.ends_with(END));
    let paths = parts.map(|name| folder.join(name));
    Ok(paths
        .filter(|path| path != own && is_regular(path))
        .collect())
}

/// Bytes of `blob` in the parts of all programs together.
pub(crate) fn bytes_of_parts(blob: &Path) -> u64 {
    let mut parts = others(blob, Path::new("")).unwrap_or_default();
    parts.push(left(blob));
    let lengths = parts
        .iter()
        .map(|part| part.symlink_metadata().map_or(0, |part| part.len()));
    lengths.fold(0, u64::saturating_add)
}

/// Returns true for a regular file. A link is refused, as it may lead to any file, and so is
/// a pipe.
fn is_regular(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_file())
}

/// Opens a file that was [`is_regular`]. If a link or a pipe has taken its place, the call
/// neither follows nor waits for it.
fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// The folder of a blob's parts, and the beginning of their names.
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

/// Listings with hashes of other kinds are refused before.
fn new_hash(listed: &ListedFile) -> BlobHash {
    BlobHash::for_etag(&listed.etag, listed.size)
        .unwrap_or_else(|| BlobHash::Sha256(Box::default()))
}

#[cfg(test)]
mod tests;
