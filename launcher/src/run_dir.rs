//! The launcher's private folder: sockets, the configuration file, the demo model.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::LaunchError;

const PREFIX: &str = "lockstep-";
const LOCK: &str = "lock";
/// Longest path of the folder: the longest name of a socket must fit in the system's 108
/// bytes.
const LONGEST: usize = 107 - "/frontend.sock".len();

/// The folder; removed when dropped. A lock in the folder lives as long as this process, so
/// that a later launcher can tell the folder from a left-over.
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the folder (0700) below `parent`, or below `$XDG_RUNTIME_DIR` or the temporary
    /// folder. First removes left-overs of this user's dead launchers.
    ///
    /// # Errors
    /// Fails when the folder cannot be made, or its path is too long for sockets.
    pub(crate) fn create(parent: Option<&Path>) -> Result<Self, LaunchError> {
        let parent = parent.map_or_else(default_parent, Path::to_owned);
        remove_stale(&parent);
        let pid = std::process::id();
        let names = (0..100).map(|n| match n {
            0 => format!("{PREFIX}{pid}"),
            n => format!("{PREFIX}{pid}-{n}"),
        });
        let failed = |path: &Path, source| LaunchError::RunDir {
            path: path.to_owned(),
            source,
        };
        for name in names {
            let path = parent.join(name);
            if path.as_os_str().as_bytes().len() > LONGEST {
                let path = path.join("frontend.sock");
                return Err(LaunchError::SocketPath { path, limit: 107 });
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = lock(&path).map_err(|source| failed(&path, source))?;
                    return Ok(Self { path, _lock: lock });
                }
                // Another process namespace shares the folder.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(failed(&path, source)),
            }
        }
        Err(failed(&parent, io::ErrorKind::AlreadyExists.into()))
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn default_parent() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_dir())
        .unwrap_or_else(std::env::temp_dir)
}

/// Takes the lock; fails with `WouldBlock` when another process has it.
fn lock(folder: &Path) -> io::Result<File> {
    let path = folder.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    file.try_lock()?;
    Ok(file)
}

/// Removes folders whose launcher is gone. Best effort: a left-over does no harm.
fn remove_stale(parent: &Path) {
    let uid = rustix::process::getuid().as_raw();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| {
            name.strip_prefix(PREFIX)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let path = entry.path();
        let own = std::fs::symlink_metadata(&path).is_ok_and(|found| {
            found.is_dir() && found.uid() == uid && found.mode() & 0o777 == 0o700
        });
        // A folder without a lock is being made right now.
        if named && own && path.join(LOCK).exists() && lock(&path).is_ok() {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests;
