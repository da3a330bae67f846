//! A folder that stays open.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

use crate::beneath::{self, FILE, FOLDER, beneath, is_out, resolved_from};
use crate::shared::Shared;

/// An open folder. It finds files below it, whatever becomes of its path.
#[derive(Debug)]
pub struct Folder {
    directory: OwnedFd,
    /// Device and inode of the folder.
    identity: (u64, u64),
    repository: Option<Repository>,
    /// True if the folder stays open from a look to the end of reading.
    is_kept: bool,
    /// Files that were looked for, and their states at that time; `None` for a missing file.
    /// The files stay open, so that no other file gets their inodes.
    seen: Mutex<Seen>,
}

/// States of files, by name.
type Seen = BTreeMap<String, Option<(Stamp, File)>>;

/// Repository of a snapshot in the Hub's cache. The snapshot's links may lead to anything below
/// it, and the links of its blobs to the store that repositories share.
#[derive(Debug)]
struct Repository {
    directory: OwnedFd,
    /// The folder with the snapshot, in the repository.
    snapshots: OwnedFd,
    /// Device and inode of the folder with the blobs, in the repository.
    blobs: (u64, u64),
    shared: Option<Shared>,
}

/// Identity and state of a file. No program can set back the time of the last change, but two
/// changes within one tick of the file system's clock look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Folder {
    /// Opens the folder that `path` leads to now.
    pub fn at(path: &Path) -> io::Result<Self> {
        let directory = beneath::folder(path)?;
        let repository = Repository::at(path, &directory);
        Self::new(directory, repository, false)
    }

    /// Opens the folder that `path` leads to below `root`.
    pub fn below(root: &OwnedFd, path: &Path) -> io::Result<Self> {
        let directory = beneath(root, path, FOLDER)?;
        let repository = Repository::below(root, path, &directory);
        Self::new(directory, repository, true)
    }

    fn new(directory: OwnedFd, repository: Option<Repository>, is_kept: bool) -> io::Result<Self> {
        Ok(Self {
            identity: identity(&directory)?,
            directory,
            repository,
            is_kept,
            seen: Mutex::default(),
        })
    }

    /// Device and inode: no other open folder of this machine has the same.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Opens the regular file `name`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file. In words if it is no regular file,
    /// a link out of the folder, or changed since it was first looked for. A file counts as
    /// changed if it has appeared, is gone, is another file, or was written.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let found = match self.find(Path::new(name)) {
            Ok(file) => Ok((regular(&file)?, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Err(error) if is_out(&error) => {
                return Err(io::Error::other(
                    "it is a link out of its folder, and those are not followed; put the file \
                     itself there",
                ));
            }
            Err(error) => return Err(error),
        };
        let mut seen = self.seen();
        match seen.get(name) {
            None => {
                let file = match &found {
                    Ok((stamp, file)) => Some((*stamp, file.try_clone()?)),
                    Err(_) => None,
                };
                seen.insert(name.to_owned(), file);
            }
            Some(before) => {
                let before = before.as_ref().map(|(stamp, _)| *stamp);
                if before != found.as_ref().ok().map(|(stamp, _)| *stamp) {
                    return Err(io::Error::other(
                        "it was changed, exchanged, taken away or put there after it was looked \
                         for; put whole files there, and leave the folder as it is until all has \
                         been read",
                    ));
                }
            }
        }
        found.map(|(_, file)| file)
    }

    /// Checks that the files that were looked for have not changed since.
    ///
    /// # Errors
    /// Name of the first changed file, with the error of [`Self::open`].
    pub fn check(&self) -> Result<(), (String, io::Error)> {
        let names: Vec<_> = self.seen().keys().cloned().collect();
        for name in names {
            match self.open(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((name, error)),
                // The file was missing before, too.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn find(&self, name: &Path) -> io::Result<File> {
        let opened = match (beneath(&self.directory, name, FILE), &self.repository) {
            (Err(error), Some(repository)) if is_out(&error) => {
                repository.follow(&self.directory, name)
            }
            (opened, _) => opened,
        };
        opened.map(File::from)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Folder {
    /// Closes files of another user's folder on a thread of its own, since closing may hang
    /// too.
    fn drop(&mut self) {
        let seen = self.seen.get_mut().unwrap_or_else(PoisonError::into_inner);
        let seen = std::mem::take(seen);
        if self.is_kept && !seen.is_empty() {
            // Without a thread, the files are closed here.
            let _ = std::thread::Builder::new().spawn(move || drop(seen));
        }
    }
}

impl Repository {
    /// The repository of the snapshot that `path` leads to, if it is a snapshot.
    fn at(path: &Path, snapshot: &OwnedFd) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let repository = of_snapshot(&path)?;
        let cache = repository.parent().map(beneath::folder);
        let directory = beneath::folder(repository).ok()?;
        Self::with_blobs(directory, &path, snapshot, cache)
    }

    /// The repository of the snapshot at `path` below `root`, if it is a snapshot and the
    /// repository lies below `root`, too.
    fn below(root: &OwnedFd, path: &Path, snapshot: &OwnedFd) -> Option<Self> {
        let repository = of_snapshot(path)?;
        let open = |path: &Path| match path.as_os_str().is_empty() {
            true => Ok(root.try_clone()?),
            false => beneath(root, path, FOLDER),
        };
        let directory = open(repository).ok()?;
        Self::with_blobs(directory, path, snapshot, repository.parent().map(open))
    }

    /// The repository in `directory`, if `snapshot` lies in it under the last name of `path`. A
    /// link is refused, and so is a folder that was put there meanwhile.
    fn with_blobs(
        directory: OwnedFd,
        path: &Path,
        snapshot: &OwnedFd,
        cache: Option<io::Result<OwnedFd>>,
    ) -> Option<Self> {
        let blobs = beneath(&directory, Path::new("blobs"), FOLDER).ok()?;
        let snapshots = beneath(&directory, Path::new(SNAPSHOTS), FOLDER).ok()?;
        let flags = FOLDER.union(OFlags::NOFOLLOW);
        let there = beneath(&snapshots, Path::new(path.file_name()?), flags).ok()?;
        let is_it = identity(&there).ok()? == identity(snapshot).ok()?;
        is_it.then_some(Self {
            directory,
            snapshots,
            blobs: identity(&blobs).ok()?,
            shared: cache.and_then(|cache| Shared::of(&cache.ok()?)),
        })
    }

    /// Opens the file `name` of the snapshot, which is open as `folder`. Links on the way are
    /// followed, each from its own place.
    fn follow(&self, folder: &OwnedFd, name: &Path) -> io::Result<OwnedFd> {
        let above = vec![self.snapshots.try_clone()?, folder.try_clone()?];
        let of_all = |here: &OwnedFd, target: &Path| match &self.shared {
            Some(shared) if identity(here).is_ok_and(|here| here == self.blobs) => {
                shared.open(target)
            }
            _ => None,
        };
        resolved_from(&self.directory, above, name, FILE, &of_all)
    }
}

/// Name of the folder of a repository's snapshots in the Hub's cache.
const SNAPSHOTS: &str = "snapshots";

/// Device and inode of a folder.
fn identity(folder: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The repository of `path`, if `path` is a snapshot's in the Hub's cache.
fn of_snapshot(path: &Path) -> Option<&Path> {
    let snapshots = path.parent()?;
    let is_one = snapshots.file_name() == Some(OsStr::new(SNAPSHOTS));
    is_one.then(|| snapshots.parent())?
}

/// State of a file; an error if the file is not a regular one.
fn regular(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok(Stamp::of(&metadata)),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another folder is put in place of the snapshot between two looks.
    #[test]
    fn a_snapshot_is_what_lies_by_its_name_in_the_repository() {
        let repository = tempfile::tempdir().expect("a folder");
        for folder in ["blobs", "snapshots/0123", "snapshots/4567"] {
            std::fs::create_dir_all(repository.path().join(folder)).expect("made");
        }
        let open = |name: &str| beneath::folder(&repository.path().join(name)).expect("there");
        for (name, is_it) in [
            ("snapshots/0123", true),
            ("snapshots/4567", false),
            ("blobs", false),
        ] {
            let path = Path::new("snapshots/0123");
            let found = Repository::with_blobs(open(""), path, &open(name), None);
            assert_eq!(found.is_some(), is_it, "{name}");
        }
    }
}
