//! The store that all repositories of the Hub's cache may share.
//!
//! huggingface_hub moves files from the Hub's Xet storage to `blobs/NN/HASH` of the cache, so
//! that repositories with equal files have them once. `blobs/ETAG` of each repository is then a
//! link to that file. These links lead out of the repository, but only to a file of the store.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};

use crate::beneath::{FILE, FOLDER};

/// File that marks the store.
const MARKER: &str = ".huggingface-shared-blobs";
/// Contents of the marker: the version of the store's layout.
const VERSION: &[u8] = b"1\n";

/// The open store.
#[derive(Debug)]
pub(crate) struct Shared(OwnedFd);

impl Shared {
    /// The store of the cache that is open as `cache`, if the cache has a folder with the
    /// marker.
    pub(crate) fn of(cache: &OwnedFd) -> Option<Self> {
        let store = at(cache, Path::new("blobs"), FOLDER).ok()?;
        let marker = at(&store, Path::new(MARKER), FILE).ok()?;
        // Only a regular file is read.
        let regular = std::fs::File::from(marker);
        let is_regular = regular.metadata().is_ok_and(|metadata| metadata.is_file());
        let mut text = [0; VERSION.len() + 1];
        let length = is_regular.then(|| rustix::io::read(&regular, &mut text).ok())??;
        (text.get(..length) == Some(VERSION)).then_some(Self(store))
    }

    /// Opens the target of a link among a repository's blobs; `None` if the target is no file
    /// of the store.
    pub(crate) fn open(&self, target: &Path) -> Option<io::Result<OwnedFd>> {
        let inside = target.strip_prefix("../../blobs").ok()?;
        let mut parts = inside.components();
        let (Some(Component::Normal(group)), Some(Component::Normal(hash)), None) =
            (parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let (group, hash) = (group.to_str()?, hash.to_str()?);
        let is_hash = hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit());
        let is_its = is_hash && hash.get(..2) == Some(group);
        is_its.then(|| {
            at(
                &at(&self.0, Path::new(group), FOLDER)?,
                Path::new(hash),
                FILE,
            )
        })
    }
}

/// Opens a file or folder by its name in a folder; a link is refused.
fn at(folder: impl AsFd, name: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags.union(OFlags::NOFOLLOW);
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?)
}
