//! Files that appear whole or not at all, in a folder that processes share.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// A folder of packed weights.
pub(super) struct Folder {
    path: PathBuf,
}

/// A file under a temporary name, removed unless it is [kept](Self::keep). A lock on the file
/// marks that it is being written.
#[derive(Debug)]
pub(super) struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
    kept: bool,
}

/// Suffix of the names of unfinished files.
const UNFINISHED: &str = ".tmp";

impl Folder {
    /// Opens the folder. Creates it, for this user alone, if it does not exist.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        if !path.is_dir() {
            made?;
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file of this user or of root, which nobody else can change. Returns `None` if
    /// the file does not exist.
    pub(super) fn open_own(&self, name: &str) -> io::Result<Option<File>> {
        let file = match lockstep_files::open(&self.path, name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let own = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
        if !own || metadata.mode() & 0o022 != 0 {
            return Err(io::Error::other(
                "it belongs to another user, or others can change it",
            ));
        }
        Ok(Some(file))
    }

    /// Creates a temporary file that takes the name `name` when it is kept.
    pub(super) fn temporary(&self, name: &str) -> io::Result<Temporary> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            let path = self.path.join(format!(".{name}.{process}-{number}.tmp"));
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            let file = match opened {
                // A process that had this one's number left the file.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            let temporary = Temporary {
                file,
                path,
                target: self.path.join(name),
                kept: false,
            };
            // On a file system without locks, `sweep` can't lock the file either, and so
            // never removes it.
            let locked = temporary.file.lock().is_ok();
            if !locked || temporary.file.metadata()?.nlink() > 0 {
                return Ok(temporary);
            }
            // Another process removed the file before it was locked.
        }
    }

    /// Removes unfinished files that no process is writing any more.
    pub(super) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with('.') || !name.ends_with(UNFINISHED) {
                continue;
            }
            let Ok(file) = lockstep_files::open(&self.path, &name) else {
                continue;
            };
            if file.try_lock().is_ok() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Temporary {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to its final name and replaces an existing file.
    pub(super) fn keep(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}
