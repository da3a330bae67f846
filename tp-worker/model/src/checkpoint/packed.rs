//! Packed weights kept on disk, so that the next start reads them as they are.
//!
//! A file holds one rank's matrices in the backend's packed form. The file's name begins with
//! its key. The key is a hash of everything that decides the packed bytes: the checkpoint's
//! content, the shapes, the split, the backend's formats. Nothing in the file is trusted:
//! each part is compared with its checksum while it is read. A file that does not match is
//! not used, and the weights are packed anew.

mod checkpoint;
mod folder;
mod key;
mod layout;
mod reader;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
};

use blake3::Hash;

use crate::{
    LoadProgress, Topology,
    blocks::parts::{Listed, Tensors},
    checkpoint::source::Source,
};
use folder::Folder;
pub(crate) use key::forms;

pub(crate) use reader::{Reader, Restored};
pub(crate) use writer::Writer;

/// A rank's place in a folder of packed weights.
pub(crate) struct Cache {
    folder: Folder,
    key: Hash,
    name: String,
    /// State of the checkpoint's files when the key was made.
    stamps: Vec<checkpoint::Stamp>,
}

impl Cache {
    /// Opens or creates the folder and finds the rank's key. The checkpoint is read for the
    /// key, unless its files were hashed before. `packed` holds the backend's [`forms`],
    /// and `tensors` the rank's tensors. Also returns a warning if the hash could not be
    /// remembered.
    ///
    /// # Errors
    /// The reason why packed weights can't be kept, in words.
    pub fn open(
        path: &Path,
        packed: &str,
        tensors: &impl Tensors<Listed>,
        topology: Topology,
        source: &dyn Source,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Self, Option<String>), String> {
        let folder = Folder::open(path).map_err(|error| error.to_string())?;
        let unread = |error| format!("the checkpoint cannot be read: {error}");
        let stamps = checkpoint::stamps(source).map_err(unread)?;
        let (content, warning) = checkpoint::hash(source, &folder, progress).map_err(unread)?;
        let key = key::key(tensors, topology, packed, &content);
        let (start, world) = (&key.to_hex()[..24], topology.world);
        let name = format!("{start}-rank{}of{}.packed", world.rank, world.size);
        let cache = Self {
            folder,
            key,
            name,
            stamps,
        };
        Ok((cache, warning))
    }

    /// Returns true if the checkpoint's files have not changed since the key was made. A
    /// packed file must not be kept if the checkpoint was overwritten while it was packed.
    pub fn still_describes(&self, source: &dyn Source) -> bool {
        checkpoint::stamps(source).is_ok_and(|stamps| stamps == self.stamps)
    }

    /// Path of the packed file, which may not exist.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Opens the packed file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// The reason why the file can't be used, in words.
    pub fn reader(&self) -> Result<Option<Reader>, String> {
        match self.folder.open_own(&self.name) {
            Ok(Some(file)) => Reader::open(file, &self.key).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Begins a new packed file, which replaces an existing one.
    ///
    /// # Errors
    /// I/O errors of the folder.
    pub fn writer(&self) -> io::Result<Writer> {
        self.folder.sweep();
        Ok(Writer::new(self.folder.temporary(&self.name)?, self.key))
    }
}

#[cfg(test)]
mod tests;
