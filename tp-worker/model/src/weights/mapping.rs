//! A file mapped into memory.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::ModelError;

/// A file, open and mapped read-only.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    mapping: Mmap,
}

impl MappedFile {
    /// Maps the file `name` of `folder`.
    ///
    /// # Errors
    /// [`ModelError::Read`].
    pub(super) fn open(folder: &Path, name: &str) -> Result<Self, ModelError> {
        let path = folder.join(name);
        let read = |source| ModelError::Read {
            file: path.clone(),
            source,
        };
        let file = lockstep_files::open(folder, name).map_err(read)?;
        #[expect(unsafe_code, reason = "mapping a file has no safe interface")]
        // SAFETY: the mapping is private and read-only and lives no longer than
        // loading takes. Every access is bounded by the length it was mapped with.
        // Weight files are written once; whoever truncates one in place while it
        // is being loaded ends the process with SIGBUS, which the launcher reports.
        let mapping = unsafe { Mmap::map(&file) }.map_err(read)?;
        Ok(Self {
            path,
            file,
            mapping,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.mapping
    }

    /// Lets the system read the file ahead. Advice only: a kernel that refuses
    /// it still reads the file.
    pub(super) fn read_ahead(&self) {
        let _ = self.mapping.advise(Advice::WillNeed);
    }

    /// Unmaps the pages of `bytes` where these are part of the file; they come
    /// back when they are touched.
    pub(super) fn release(&self, bytes: &[u8]) {
        let (from, length) = (bytes.as_ptr().addr(), bytes.len());
        let Some(offset) = from.checked_sub(self.mapping.as_ptr().addr()) else {
            return;
        };
        if offset + length > self.mapping.len() {
            return;
        }
        #[expect(unsafe_code, reason = "the advice has no safe interface")]
        // SAFETY: the mapping is of a file and never written, so the dropped
        // pages are read from the file again with the same contents. The range
        // was checked to lie in the mapping.
        let _ = unsafe {
            self.mapping
                .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, length)
        };
    }
}
