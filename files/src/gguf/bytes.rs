//! Bytes of a file from its beginning on, read as far as they are asked for.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::reader_thread::PIECE;
use crate::{LARGEST_TOKENIZER, on_reader_thread, read_exact_at};

/// Source of bytes.
pub(crate) trait Source {
    /// Returns the number of all bytes.
    fn size(&self) -> u64;

    /// Reads `length` bytes from `at` on.
    ///
    /// # Errors
    /// The errors of reading.
    fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>>;
}

/// A file and its size.
pub(crate) struct FileSource<'f> {
    /// The file.
    pub file: &'f File,
    /// Its number of bytes.
    pub size: u64,
}

impl Source for FileSource<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = self.file.try_clone()?;
        on_reader_thread(move || {
            let mut bytes = vec![0; length];
            read_exact_at(&file, &mut bytes, at)?;
            Ok(bytes)
        })
    }
}

/// Reason why bytes can't be taken.
#[derive(Debug)]
pub(crate) enum Fault {
    /// They can't be read.
    Read(io::Error),
    /// They are not there, or are not what they should be.
    Damaged(String),
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

/// Bytes that were taken so far. Never more are read than the source has.
pub(crate) struct Cursor<'s> {
    source: &'s dyn Source,
    bytes: Vec<u8>,
    at: usize,
}

impl<'s> Cursor<'s> {
    /// Begins at the first byte.
    pub fn new(source: &'s dyn Source) -> Self {
        Self {
            source,
            bytes: Vec::new(),
            at: 0,
        }
    }

    /// Returns the number of bytes that were taken.
    pub fn at(&self) -> u64 {
        self.at as u64
    }

    /// Returns the number of bytes that were not taken yet.
    pub fn rest(&self) -> u64 {
        self.source.size().saturating_sub(self.at())
    }

    /// Returns all bytes that were taken.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.truncate(self.at);
        self.bytes.shrink_to_fit();
        self.bytes
    }

    /// Takes `length` bytes, and returns their place.
    ///
    /// # Errors
    /// [`Fault::Damaged`] if there are fewer, or if a header would become too large.
    pub fn take(&mut self, length: u64) -> Result<Range<usize>, Fault> {
        let (at, size) = (self.at(), self.source.size());
        let end = at.checked_add(length).filter(|end| *end <= size);
        let end = end.ok_or_else(|| format!("it ends at byte {size}, inside of its header"))?;
        if end > LARGEST_TOKENIZER {
            let reason = format!("its header has more than {LARGEST_TOKENIZER} bytes");
            return Err(reason.into());
        }
        while (self.bytes.len() as u64) < end {
            let begin = self.bytes.len() as u64;
            let piece = (size - begin).min(PIECE as u64);
            let read = self.source.read(begin, piece as usize);
            self.bytes.extend(read.map_err(Fault::Read)?);
        }
        let place = self.at..end as usize;
        self.at = place.end;
        Ok(place)
    }

    /// Takes `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let place = self.take(N as u64)?;
        let bytes = self.bytes[place].first_chunk();
        Ok(bytes.copied().unwrap_or([0; N]))
    }

    /// Takes a number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes a number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes a text: its length in 64 bits, then its bytes.
    pub fn text(&mut self) -> Result<Range<usize>, Fault> {
        let length = self.u64()?;
        self.take(length)
    }

    /// Returns bytes that were taken.
    pub fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.bytes[place]
    }
}
