//! Writes a packed file while weights are packed.

use std::{
    fs::File,
    io,
    num::NonZero,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use blake3::Hash;

use super::{
    folder::Temporary,
    layout::{self, Entry, Footer, Index, PAGE, PIECE, SEGMENT},
};

/// A packed file that is being written. If it is dropped unfinished, it is removed.
pub(crate) struct Writer {
    file: Temporary,
    key: Hash,
    index: Index,
    end: u64,
}

impl Writer {
    pub(super) fn new(file: Temporary, key: Hash) -> Self {
        Self {
            file,
            key,
            index: Index::default(),
            end: PAGE,
        }
    }

    /// Appends the packed form of a matrix `[rows, cols]`, on as many threads as cores are
    /// available.
    ///
    /// # Errors
    /// I/O errors, such as a full disk.
    pub fn add(&mut self, rows: usize, cols: usize, data: &[u8]) -> io::Result<()> {
        let offset = self.end;
        let segments: Vec<_> = data.chunks(SEGMENT).collect();
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let (next, file) = (AtomicUsize::new(0), self.file.file());
        let work = || -> io::Result<Vec<(usize, Hash)>> {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(segment) = segments.get(at) else {
                    return Ok(done);
                };
                let from = offset + (at * SEGMENT) as u64;
                done.push((at, write(file, from, segment)?));
            }
        };
        let mut hashes = thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(segments.len()))
                .map(|_| scope.spawn(work))
                .collect();
            let mut all = work()?;
            for other in others {
                let panicked = |_| io::Error::other("a thread that writes panicked");
                all.extend(other.join().map_err(panicked)??);
            }
            Ok::<_, io::Error>(all)
        })?;
        hashes.sort_by_key(|(at, _)| *at);
        self.index.matrices.push(Entry {
            rows,
            cols,
            offset,
            length: data.len() as u64,
            segments: hashes
                .into_iter()
                .map(|(_, hash)| hash.to_string())
                .collect(),
        });
        self.end = (offset + data.len() as u64).next_multiple_of(PAGE);
        Ok(())
    }

    /// Writes index, footer and header, and gives the file its final name. If the system
    /// crashes before all bytes are on the disk, the checksums show it at the next start.
    ///
    /// # Errors
    /// Fails when the file can't be written or renamed: no space, no permission.
    pub fn finish(self) -> io::Result<()> {
        let index = serde_json::to_vec(&self.index)?;
        let footer = Footer {
            offset: self.end,
            length: index.len() as u64,
            hash: layout::hash(&self.key, &index),
        };
        let file = self.file.file();
        file.write_all_at(&index, self.end)?;
        file.write_all_at(&footer.to_bytes(), self.end + footer.length)?;
        file.write_all_at(&layout::header(&self.key), 0)?;
        self.file.keep()
    }
}

/// Writes a segment and hashes it on the way.
fn write(file: &File, mut from: u64, segment: &[u8]) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    for piece in segment.chunks(PIECE) {
        hasher.update(piece);
        file.write_all_at(piece, from)?;
        from += piece.len() as u64;
    }
    Ok(hasher.finalize())
}
