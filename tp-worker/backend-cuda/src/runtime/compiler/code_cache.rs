//! Machine code that was compiled at an earlier start.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::NamedTempFile;

/// Largest number of bytes of a file; ours have a hundredth of that.
const MOST: u64 = 64 << 20;

/// Programs that this process compiled and could not keep.
static NOT_KEPT: AtomicUsize = AtomicUsize::new(0);

/// Number of programs that this process compiled for a folder that could not hold them.
pub fn programs_not_kept() -> usize {
    NOT_KEPT.load(Ordering::Relaxed)
}

/// A folder of machine code, in which each file begins with the code's hash. A failure is a
/// warning, and costs the time to compile.
pub(super) struct CodeCache {
    folder: PathBuf,
    /// True once a failure was logged.
    told: AtomicBool,
}

impl CodeCache {
    /// Makes the folder where it is missing.
    pub(super) fn open(folder: &Path) -> Self {
        let kept = Self {
            folder: folder.to_owned(),
            told: AtomicBool::new(false),
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        if let Err(error) = made.or_else(|error| folder.is_dir().then_some(()).ok_or(error)) {
            kept.tell(&error);
        }
        kept
    }

    /// The code under `name`; `None` if there is none or its hash is wrong.
    pub(super) fn read(&self, name: &str) -> Option<Vec<u8>> {
        match lockstep_files::read(&self.folder, name, MOST) {
            Ok(bytes) => {
                let whole = bytes.split_at_checked(blake3::OUT_LEN);
                let whole = whole.filter(|(hash, code)| blake3::hash(code).as_bytes() == hash);
                whole.map(|(_, code)| code.to_vec())
            }
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    self.tell(&error);
                }
                None
            }
        }
    }

    /// Writes `code` under `name`, whole or not at all: processes on several machines may share
    /// the folder and write the same file at once.
    pub(super) fn write(&self, name: &str, code: &[u8]) {
        let written = || -> io::Result<()> {
            let mut file = NamedTempFile::new_in(&self.folder)?;
            file.write_all(blake3::hash(code).as_bytes())?;
            file.write_all(code)?;
            file.persist(self.folder.join(name))?;
            Ok(())
        };
        if let Err(error) = written() {
            NOT_KEPT.fetch_add(1, Ordering::Relaxed);
            self.tell(&error);
        }
    }

    fn tell(&self, error: &io::Error) {
        if !self.told.swap(true, Ordering::Relaxed) {
            let folder = self.folder.display();
            tracing::warn!(
                "kernels are compiled at every start, as {folder} cannot hold them: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_a_folder_cannot_hold_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("kernels");
        let kept = CodeCache::open(&inside);
        let before = programs_not_kept();
        kept.write("a", b"code");
        assert_eq!(programs_not_kept(), before);
        std::fs::remove_dir_all(&inside).expect("it is there");
        kept.write("b", b"code");
        assert_eq!(programs_not_kept(), before + 1);
        assert_eq!(kept.read("b"), None);
    }
}
