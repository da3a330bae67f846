//! A file mapped into memory.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use lockstep_backend::HostBlock;
use lockstep_files::{LARGEST_INDEX, on_reader_thread, read_exact_at};
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};

use super::HEADER_LENGTH_BYTES;
use crate::ModelError;

/// How the files of a model are looked at while it is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// Mapped: nothing is copied, and whoever truncates a file meanwhile ends the
    /// process. For starts.
    #[default]
    Mapped,
    /// Read, a matrix at a time: a file that is truncated, or a disk that fails, is
    /// an error. For weights that are exchanged while others serve. The bytes of
    /// tensors are zeros then, and what files have comes as vectors and matrices
    /// that are loaded.
    Read,
}

/// A file, open, and memory of its size: the file mapped read-only, or its
/// header with nothing behind it, for [`FileAccess::Read`].
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    mapping: Mmap,
    access: FileAccess,
}

impl MappedFile {
    /// Maps the file `name` of `folder`, or makes memory for it.
    ///
    /// # Errors
    /// [`ModelError::Read`].
    pub(super) fn open(folder: &Path, name: &str, access: FileAccess) -> Result<Self, ModelError> {
        let path = folder.join(name);
        let open = || {
            let file = lockstep_files::open(folder, name)?;
            on_reader_thread(move || {
                let mapping = match access {
                    FileAccess::Mapped => map(&file)?,
                    FileAccess::Read => header(&file)?,
                };
                Ok((file, mapping))
            })
        };
        let (file, mapping) = open().map_err(|source| ModelError::Read {
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

    /// Whether `bytes` are not those of the file, but only as many.
    pub(super) fn is_read(&self) -> bool {
        self.access == FileAccess::Read
    }

    /// Reads what the file has at the place of `block`, which lies in its memory,
    /// behind `into`: its rows, so many bytes of each. `None` where it doesn't.
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

    /// Where `bytes` lie in the file.
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

    /// Lets the system read the file ahead. Advice only: a kernel that refuses
    /// it still reads the file.
    pub(super) fn read_ahead(&self) {
        if !self.is_read() {
            let _ = self.mapping.advise(Advice::WillNeed);
        }
    }

    /// Unmaps the pages of `bytes` where these are part of the file; they come
    /// back when they are touched.
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
    // SAFETY: the mapping is private and read-only and lives no longer than
    // loading takes. Every access is bounded by the length it was mapped with.
    // Weight files are written once; whoever truncates one in place while it
    // is being loaded ends the process with SIGBUS, which the launcher reports.
    unsafe {
        Mmap::map(file)
    }
}

/// As much memory as the file has bytes, of which only the header is used: the
/// rest is addresses, which the system gives no pages to.
fn header(file: &File) -> io::Result<Mmap> {
    let size = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut memory = MmapOptions::new().len(size).no_reserve_swap().map_anon()?;
    let mut length = [0; HEADER_LENGTH_BYTES];
    read_exact_at(file, &mut length[..size.min(HEADER_LENGTH_BYTES)], 0)?;
    // One that is too long is refused for its length.
    let header = Some(u64::from_le_bytes(length)).filter(|header| *header <= LARGEST_INDEX);
    let header = usize::try_from(header.unwrap_or(0)).map_err(io::Error::other)?;
    let most = size.min(header.saturating_add(HEADER_LENGTH_BYTES));
    read_exact_at(file, &mut memory[..most], 0)?;
    memory.make_read_only()
}
