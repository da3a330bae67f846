//! Who loads a file: one program at a time, where the file system knows locks.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The mode of the hub's locks, as all its programs make them: who shares the cache by a
/// group may take them.
const MODE: u32 = 0o664;

/// Held until it is dropped, where there is one to be had: without it, several programs may
/// load one file, and no harm comes of it.
#[derive(Debug)]
pub(crate) struct Lock {
    _held: Option<File>,
}

/// What comes before a lock.
#[derive(Debug)]
pub(crate) enum Wait<'a> {
    /// Another program has it.
    ForAnother,
    /// There is none, for this reason.
    ForNothing(&'a io::Error),
}

impl Lock {
    /// Waits until no other program has the lock at `path`; `told` hears of it.
    pub(crate) fn take(path: &Path, told: &dyn Fn(Wait<'_>)) -> io::Result<Self> {
        loop {
            let file = open(path)?;
            match wait(&file, told) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    told(Wait::ForNothing(&error));
                    return Ok(Self { _held: None });
                }
                Ok(()) => {}
            }
            // Some programs remove the file as they unlock it; then others have no part in it.
            if file.metadata().is_ok_and(|metadata| metadata.nlink() > 0) {
                return Ok(Self { _held: Some(file) });
            }
        }
    }
}

fn wait(file: &File, told: &dyn Fn(Wait<'_>)) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            told(Wait::ForAnother);
            file.lock()
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(MODE);
    match options.open(path) {
        Ok(file) => {
            // The process's mask took a part of it. Another user's file stays as it is.
            let _ = fs::set_permissions(path, Permissions::from_mode(MODE));
            Ok(file)
        }
        // Another user's, which can be locked all the same.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn a_lock_is_taken_where_there_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.lock");
        let lock = Lock::take(&path, &|wait| panic!("{wait:?}")).expect("taken");
        let again = File::open(&path).expect("there");
        assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        let mode = again.metadata().expect("there").mode();
        assert_eq!(mode & 0o777, MODE);
        drop(lock);
        again.try_lock().expect("free");
    }

    #[test]
    fn no_lock_is_no_other_program() {
        // Of such a file none can be locked, as on some file systems.
        let file = rustix::fs::open(".", OFlags::PATH, Mode::empty()).expect("there");
        let heard = Cell::new(0);
        let error = wait(&File::from(file), &|_| heard.set(heard.get() + 1));
        error.expect_err("no lock");
        assert_eq!(heard.get(), 0, "it waits for nobody");
    }
}
