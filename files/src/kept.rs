//! Folders that stay open from a look at them to the end of reading.
//!
//! Between the two, users with write access could exchange a folder or its files. Then other
//! files would be read than were looked at, or each reader might get different ones. So all
//! readers of a process find the files of a path here.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::beneath;
use crate::folder::Folder;
use crate::reader_thread::on_reader_thread;
use crate::time_limits::still_waited_for;

/// Kept folders, by the paths that readers give.
static KEPT: Mutex<BTreeMap<PathBuf, Weak<Folder>>> = Mutex::new(BTreeMap::new());

/// A folder that stays open. While it is kept, [`open`](crate::open), and the functions that
/// use it, look for files of its path in this folder, wherever the path leads meanwhile. A file
/// that has changed or appeared since it was first looked for is an error.
#[derive(Debug, Clone)]
pub struct Kept {
    path: PathBuf,
    folder: Arc<Folder>,
}

impl Kept {
    /// Opens the folder `path` below `dir`. Links on the way may not lead out of `dir`.
    ///
    /// # Errors
    /// In words if `path` does not lie below `dir`; other errors if there is no such folder.
    /// [`io::ErrorKind::TimedOut`] on a thread of [`within`](crate::within) that nobody waits
    /// for any more: it may not replace a folder that is kept since.
    pub fn below(dir: &Path, path: &Path) -> io::Result<Self> {
        let outside = || io::Error::other(format!("it is not inside {}", dir.display()));
        let real = dir.canonicalize()?;
        let inside = path.strip_prefix(&real).or_else(|_| path.strip_prefix(dir));
        let inside = inside.map_err(|_| outside())?;
        let is_name = |part| matches!(part, Component::Normal(_));
        if inside.as_os_str().is_empty() || !inside.components().all(is_name) {
            return Err(outside());
        }
        let folder = Folder::below(&beneath::folder(&real)?, inside);
        let folder = folder.map_err(|error| match beneath::is_out(&error) {
            true => outside(),
            false => error,
        })?;
        Self::new(path, folder)
    }

    fn new(path: &Path, folder: Folder) -> io::Result<Self> {
        let (path, folder) = (path.to_owned(), Arc::new(folder));
        let mut kept = kept();
        still_waited_for()?;
        kept.retain(|_, folder| folder.strong_count() > 0);
        kept.insert(path.clone(), Arc::downgrade(&folder));
        drop(kept);
        Ok(Self { path, folder })
    }

    /// Path of the folder, as readers give it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode: no other open folder of this machine has the same.
    pub fn identity(&self) -> (u64, u64) {
        self.folder.identity()
    }

    /// Checks that the files that were looked for have not changed since, and that they were
    /// found in this folder.
    ///
    /// # Errors
    /// The first changed file; or another folder is kept for the path.
    pub fn check(&self) -> io::Result<()> {
        let found = find(&self.path);
        if !found.is_some_and(|found| Arc::ptr_eq(&found, &self.folder)) {
            let path = self.path.display();
            let error = format!("{path}: another folder was looked at in its place meanwhile");
            return Err(io::Error::other(error));
        }
        let (path, folder) = (self.path.clone(), self.folder.clone());
        on_reader_thread(move || {
            folder.check().map_err(|(name, error)| {
                let file = path.join(name);
                io::Error::new(error.kind(), format!("{}: {error}", file.display()))
            })
        })
    }
}

/// The folder that is kept for `path`.
pub fn find(path: &Path) -> Option<Arc<Folder>> {
    kept().get(path).and_then(Weak::upgrade)
}

fn kept() -> MutexGuard<'static, BTreeMap<PathBuf, Weak<Folder>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
