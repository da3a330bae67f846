//! Locks on files: one program loads a file at a time, if the file system supports locks.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Mode of the hub's locks, the same for all its programs: users that share the cache by a
/// group may take them.
const MODE: u32 = 0o664;

/// Pause between two checks of a lock. A wait in the kernel could not be given up.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// A lock that is held until it is dropped. If no lock can be had, the value stands for
/// none: then several programs may load one file, which does no harm.
#[derive(Debug)]
pub(crate) struct Lock {
    _held: Option<File>,
}

/// News for the user: a lock is waited for, or there is none to be had.
#[derive(Debug)]
pub(crate) enum Wait<'a> {
    /// Another program holds the lock.
    ForAnother,
    /// The file system gives no lock, for this reason.
    ForNothing(&'a io::Error),
}

impl Lock {
    /// Waits until no other program has the lock at `path`. Returns `None` if `came`, a
    /// count of bytes, has not changed for `stall`. `on_wait` gets a word about the wait.
    ///
    /// # Errors
    /// Fails when there can be no such file.
    pub(crate) async fn take(
        path: PathBuf,
        stall: Duration,
        came: impl Fn() -> u64 + Clone + Send + 'static,
        on_wait: &(dyn Fn(Wait<'_>) + Sync),
    ) -> io::Result<Option<Self>> {
        let (mut seen, mut since) = (None, Instant::now());
        loop {
            let (path, came) = (path.clone(), came.clone());
            let look = move || Ok::<_, io::Error>((Attempt::with(open(&path)?), came()));
            let (attempt, now) = spawn_blocking(look).await.map_err(io::Error::other)??;
            match attempt {
                Attempt::Taken(file) => return Ok(Some(Self { _held: Some(file) })),
                Attempt::None(error) => {
                    on_wait(Wait::ForNothing(&error));
                    return Ok(Some(Self { _held: None }));
                }
                Attempt::Another if seen.is_none() => on_wait(Wait::ForAnother),
                Attempt::Another => {}
            }
            if seen != Some(now) {
                (seen, since) = (Some(now), Instant::now());
            } else if since.elapsed() > stall {
                return Ok(None);
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// Result of one check of a lock.
enum Attempt {
    Taken(File),
    /// Another program holds the lock, or had it and removed its file.
    Another,
    /// The file system gives no lock, for this reason.
    None(io::Error),
}

impl Attempt {
    fn with(file: File) -> Self {
        match file.try_lock() {
            // Some programs remove the file as they unlock it; a lock on the removed file
            // excludes nobody.
            Ok(()) if file.metadata().is_ok_and(|metadata| metadata.nlink() > 0) => {
                Self::Taken(file)
            }
            Ok(()) | Err(TryLockError::WouldBlock) => Self::Another,
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {
                Self::Another
            }
            Err(TryLockError::Error(error)) => Self::None(error),
        }
    }
}

/// Opens the file of a lock, and refuses a link to another file, because its mode is set.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(MODE);
    match options.custom_flags(flags).open(path) {
        Ok(file) => {
            // The process's mask may have removed bits of it. Another user's file keeps its
            // mode.
            let _ = file.set_permissions(Permissions::from_mode(MODE));
            Ok(file)
        }
        // Another user's file can be locked all the same.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags).open(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().expect("a runtime")
    }

    fn take(path: &Path, stall: Duration, came: fn() -> u64) -> (io::Result<Option<Lock>>, usize) {
        let heard = Mutex::new(0);
        let on_wait = |_: Wait<'_>| *heard.lock().expect("no panic") += 1;
        let lock = runtime().block_on(Lock::take(path.to_owned(), stall, came, &on_wait));
        (lock, heard.into_inner().expect("no panic"))
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_lock_is_taken_where_there_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.lock");
        let (lock, heard) = take(&path, LONG, || 0);
        assert_eq!(heard, 0);
        let again = File::open(&path).expect("there");
        assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        let mode = again.metadata().expect("there").mode();
        assert_eq!(mode & 0o777, MODE);
        drop(lock.expect("there").expect("taken"));
        again.try_lock().expect("free");
    }

    /// Waits for a program that brings bytes, until it ends, but not for one that brings
    /// nothing.
    #[test]
    fn another_program_is_waited_for_while_it_brings_something() {
        static LEFT: Mutex<Option<(File, u64)>> = Mutex::new(None);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.lock");
        let held = File::create(&path).expect("made");
        held.lock().expect("locked");
        let (lock, heard) = take(&path, Duration::ZERO, || 7);
        assert!(lock.expect("there").is_none(), "it is held");
        assert_eq!(heard, 1);
        *LEFT.lock().expect("no panic") = Some((held, 3));
        // Each check finds more bytes; at the fourth one the program has ended.
        let came = || {
            let mut left = LEFT.lock().expect("no panic");
            match left.as_mut() {
                Some((_, 0)) | None => {
                    left.take();
                    0
                }
                Some((_, looks)) => {
                    *looks -= 1;
                    *looks + 1
                }
            }
        };
        let (lock, heard) = take(&path, Duration::ZERO, came);
        assert!(lock.expect("there").is_some(), "it was given back");
        assert_eq!(heard, 1, "it is said once");
    }

    #[test]
    fn what_is_no_file_is_no_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("secret"), "").expect("written");
        fs::set_permissions(path("secret"), Permissions::from_mode(0o600)).expect("set");
        symlink("secret", path("link.lock")).expect("linked");
        symlink("gone", path("dangling.lock")).expect("linked");
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, path("pipe.lock"), FileType::Fifo, mode, 0).expect("made");
        for name in ["link.lock", "dangling.lock", "pipe.lock"] {
            let (lock, heard) = take(&path(name), LONG, || 0);
            lock.expect_err(name);
            assert_eq!(heard, 0);
        }
        let mode = fs::metadata(path("secret")).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!path("gone").exists());
    }

    #[test]
    fn no_lock_is_no_other_program() {
        // Such a file can't be locked, like files on some file systems.
        let file = rustix::fs::open(".", OFlags::PATH, Mode::empty()).expect("there");
        assert!(matches!(Attempt::with(file.into()), Attempt::None(_)));
    }
}
