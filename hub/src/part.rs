//! A file that has come in part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use crate::HubError;
use crate::answer::Listed;
use crate::digest::Running;

/// The beginning of a file, beside its blob: `HASH.incomplete`, which other programs of
/// the hub write and continue too.
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    listed: Listed,
    hash: Running,
    length: u64,
}

impl Part {
    /// What is there of the file whose blob is `blob`; nothing, if need be.
    pub(crate) fn open(blob: &Path, listed: &Listed) -> Result<Self, HubError> {
        let mut path = blob.as_os_str().to_owned();
        path.push(".incomplete");
        let path = PathBuf::from(path);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let file = options.open(&path).map_err(HubError::cache(&path))?;
        let hash = new_hash(listed);
        let mut part = Self {
            path,
            file,
            listed: listed.clone(),
            hash,
            length: 0,
        };
        part.hash_what_is_there()
            .map_err(HubError::cache(&part.path))?;
        Ok(part)
    }

    fn hash_what_is_there(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.listed.size {
            self.file.set_len(0)?;
        }
        self.file.rewind()?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = self.file.read(&mut buffer)?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
                return Ok(());
            };
            self.hash.update(piece);
            self.length += piece.len() as u64;
        }
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
        let written = self.file.write_all(bytes);
        written.map_err(HubError::cache(&self.path))?;
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
        Ok(())
    }

    /// What is wrong with the whole, if something is: its hash; or its size on the disk,
    /// where another program writes it too because its file system knows no locks.
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
    pub(crate) fn complete(self, blob: &Path) -> Result<(), HubError> {
        let done = self.file.sync_all();
        let done = done.and_then(|()| fs::rename(&self.path, blob));
        done.map_err(HubError::cache(blob))
    }
}

/// Listings are refused that have hashes of other kinds.
fn new_hash(listed: &Listed) -> Running {
    Running::for_etag(&listed.etag, listed.size).unwrap_or_else(|| Running::Sha256(Box::default()))
}
