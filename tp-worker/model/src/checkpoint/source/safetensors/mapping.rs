//! A file of a checkpoint, mapped into memory or read.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use lockstep_backend::HostBlock;
use lockstep_files::{on_reader_thread, read_exact_at};
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};

use crate::ModelError;

/// Way to access a model's files while it is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// The files are mapped and nothing is copied. If someone truncates a file meanwhile, the
    /// process ends. This is for starts.
    #[default]
    Mapped,
    /// The files are read, one matrix at a time. A truncated file or a failing disk is an
    /// error. This is for weights that are exchanged while the server runs. Bytes of mapped
    /// tensors are zeros in this mode; only loaded vectors and matrices have the files'
    /// content.
    Read,
}

/// An open file, and memory of its size. The memory is the file mapped read-only, or, for
/// [`FileAccess::Read`], nothing but addresses.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    mapping: Mmap,
    access: FileAccess,
}

impl MappedFile {
    /// Maps `file`, which is at `path`, or makes memory for it.
    ///
    /// # Errors
    /// [`ModelError::Read`].
    pub(super) fn new(path: PathBuf, file: File, access: FileAccess) -> Result<Self, ModelError> {
        let mapped = on_reader_thread(move || {
            let mapping = match access {
                FileAccess::Mapped => map(&file)?,
                FileAccess::Read => reserve(&file)?,
            };
            Ok((file, mapping))
        });
        let (file, mapping) = mapped.map_err(|source| ModelError::Read {
            file: path.clone(),
            source,
        })?;
        Ok(Self {
            path,
            file,
            mapping,
            access,
        })
    }

    /// Returns true if the file is read, not mapped. [`Self::bytes`] then has the file's
    /// length, but not its content.
    pub(super) fn is_read(&self) -> bool {
        self.access == FileAccess::Read
    }

    /// Appends the file's content at the place of `block` to `into`: `width` bytes of each
    /// row of `block`. Returns `None` if `block` is not in this file's memory.
    pub(super) fn read(
        &self,
        block: &HostBlock<'_>,
        width: usize,
        into: &mut Vec<u8>,
    ) -> Option<io::Result<()>> {
        let offset = self.offset(block.bytes)? + block.offset;
        let (stride, rows) = (block.stride, block.rows);
        let mut read = std::mem::take(into);
        let all = move |file: File| {
            for row in 0..rows {
                let begin = read.len();
                read.resize(begin + width, 0);
                let at = (offset + row * stride) as u64;
                read_exact_at(&file, &mut read[begin..], at)?;
            }
            Ok(read)
        };
        let file = self.file.try_clone();
        let read = file.and_then(|file| on_reader_thread(move || all(file)));
        Some(read.map(|read| *into = read))
    }

    /// Returns the offset of `bytes` in the file; `None` if `bytes` lie elsewhere.
    fn offset(&self, bytes: &[u8]) -> Option<usize> {
        let from = bytes.as_ptr().addr();
        let offset = from.checked_sub(self.mapping.as_ptr().addr())?;
        (offset + bytes.len() <= self.mapping.len()).then_some(offset)
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

    /// Asks the system to read the file ahead. The file is still readable if the kernel
    /// refuses.
    pub(super) fn read_ahead(&self) {
        if !self.is_read() {
            let _ = self.mapping.advise(Advice::WillNeed);
        }
    }

    /// Unmaps the pages of `bytes` if they are part of the file. The pages come back when
    /// they are touched.
    pub(super) fn release(&self, bytes: &[u8]) {
        let Some(offset) = self.offset(bytes).filter(|_| !self.is_read()) else {
            return;
        };
        #[expect(unsafe_code, reason = "the advice has no safe interface")]
        // SAFETY: the mapping is of a file and never written, so the dropped
        // pages are read from the file again with the same contents. The range
        // was checked to lie in the mapping.
        let _ = unsafe {
            self.mapping
                .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, bytes.len())
        };
    }
}

fn map(file: &File) -> io::Result<Mmap> {
    #[expect(unsafe_code, reason = "mapping a file has no safe interface")]
    // SAFETY: the mapping is private and read-only and lives no longer than loading takes.
    // Every access is bounded by the length it was mapped with. Weight files are written
    // once. If someone truncates a file in place while it is loaded, the process ends with
    // SIGBUS, which the launcher reports.
    unsafe {
        Mmap::map(file)
    }
}

/// Reserves as much memory as the file has bytes: addresses without pages.
fn reserve(file: &File) -> io::Result<Mmap> {
    let size = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let memory = MmapOptions::new().len(size).no_reserve_swap().map_anon()?;
    memory.make_read_only()
}
