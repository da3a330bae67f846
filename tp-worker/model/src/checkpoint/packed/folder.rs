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

/// A file under a name of its own, removed unless it is [kept](Self::keep).
/// Its lock says that somebody is writing it.
#[derive(Debug)]
pub(super) struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
    kept: bool,
}

/// How the names of unfinished files end.
const UNFINISHED: &str = ".tmp";

impl Folder {
    /// Makes the folder, for this user alone, where it does not exist.
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

    /// Opens a file that this user or root wrote and nobody else can change;
    /// `None` where there is none.
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

    /// Begins a file that becomes `name` when it is kept.
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
                // Left by a process that had this one's number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            let temporary = Temporary {
                file,
                path,
                target: self.path.join(name),
                kept: false,
            };
            // File systems without locks never lose an unfinished file to
            // `sweep`, which could not lock it either.
            let locked = temporary.file.lock().is_ok();
            if !locked || temporary.file.metadata()?.nlink() > 0 {
                return Ok(temporary);
            }
            // Another process swept it away before it was locked.
        }
    }

    /// Removes what processes that are gone left unfinished.
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

    /// Gives the file its name, in place of one that has it.
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
