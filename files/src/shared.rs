//! The store that all repositories of the Hub's cache may share.
//!
//! What huggingface_hub loads from the Hub's Xet storage it moves to `blobs/NN/HASH` of the
//! cache, so that repositories with equal files have them once; `blobs/ETAG` of each
//! repository is then a link to that. These links lead out of the repository, and to
//! nothing but a file of the store.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};

use crate::beneath::{FILE, FOLDER};

/// The file in the store that says whose it is.
const MARKER: &str = ".huggingface-shared-blobs";
/// What stands in it: the version of its layout.
const VERSION: &[u8] = b"1\n";

/// The store, open.
#[derive(Debug)]
pub(crate) struct Shared(OwnedFd);

impl Shared {
    /// That of the cache that is open as `cache`, if it has one: a folder that says of itself
    /// that it is.
    pub(crate) fn of(cache: &OwnedFd) -> Option<Self> {
        let store = at(cache, Path::new("blobs"), FOLDER).ok()?;
        let marker = at(&store, Path::new(MARKER), FILE).ok()?;
        // Another kind of file is not read.
        let regular = std::fs::File::from(marker);
        let is_regular = regular.metadata().is_ok_and(|metadata| metadata.is_file());
        let mut text = [0; VERSION.len() + 1];
        let length = is_regular.then(|| rustix::io::read(&regular, &mut text).ok())??;
        (text.get(..length) == Some(VERSION)).then_some(Self(store))
    }

    /// Opens what a link with this target, among a repository's blobs, leads to; `None` for a
    /// target that is no file of the store.
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

/// Opens what lies in a folder by a name, and is no link.
fn at(folder: impl AsFd, name: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags.union(OFlags::NOFOLLOW);
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?)
}
