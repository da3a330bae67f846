//! Packed weights kept on disk, so that the next start reads them as they are.
//!
//! A file holds one rank's matrices in the backend's packed form. Its name is
//! made of its key, a hash of everything that the packed bytes follow from:
//! the checkpoint's content, the shapes, the split, the backend's formats.
//! Nothing in it is believed: every part is compared with its checksum while
//! it is read, and what does not match is packed anew.

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
    LoadProgress, Topology, Weights,
    blocks::parts::{Listed, Tensors},
};
use folder::Folder;
pub(crate) use key::formats;

pub(crate) use reader::{Reader, Restored};
pub(crate) use writer::Writer;

/// A rank's place in a folder of packed weights.
pub(crate) struct Cache {
    folder: Folder,
    key: Hash,
    name: String,
    /// What the checkpoint's files were when the key was made.
    stamps: Vec<checkpoint::Stamp>,
}

impl Cache {
    /// Opens or makes the folder and finds the rank's key, for which the
    /// checkpoint is read unless its files were seen before; `packed` are the
    /// backend's [`formats`], and `tensors` the rank's. Also what went wrong on the way without stopping it.
    ///
    /// # Errors
    /// Why packed weights can't be kept, in words.
    pub fn open(
        path: &Path,
        packed: &str,
        tensors: &impl Tensors<Listed>,
        topology: Topology,
        weights: &Weights,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Self, Option<String>), String> {
        let folder = Folder::open(path).map_err(|error| error.to_string())?;
        let unread = |error| format!("the checkpoint cannot be read: {error}");
        let stamps = checkpoint::stamps(weights).map_err(unread)?;
        let (content, warning) = checkpoint::hash(weights, &folder, progress).map_err(unread)?;
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

    /// Whether the checkpoint's files are still those that the key was made of:
    /// one that is overwritten while it is packed makes a file that must not
    /// be kept.
    pub fn still_describes(&self, weights: &Weights) -> bool {
        checkpoint::stamps(weights).is_ok_and(|stamps| stamps == self.stamps)
    }

    /// The file, there or not.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Opens the file; `None` where there is none.
    ///
    /// # Errors
    /// Why it can't be used, in words.
    pub fn reader(&self) -> Result<Option<Reader>, String> {
        match self.folder.open_own(&self.name) {
            Ok(Some(file)) => Reader::open(file, &self.key).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Begins a file in place of the one that is there, if one is.
    ///
    /// # Errors
    /// What the folder says.
    pub fn writer(&self) -> io::Result<Writer> {
        self.folder.sweep();
        Ok(Writer::new(self.folder.temporary(&self.name)?, self.key))
    }
}

#[cfg(test)]
mod tests;
