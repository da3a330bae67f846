//! Reads a packed file straight into a backend's matrices.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Mutex};

use blake3::Hash;
use lockstep_backend::{Backend, BackendError, WeightFormat};
use lockstep_files::LARGEST_INDEX;

use crate::ModelError;

use super::layout::{self, Entry, FOOTER, Footer, Index, PAGE, PIECE, SEGMENT};

/// An open packed file, whose matrices are read from first to last.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    entries: std::vec::IntoIter<Entry>,
}

/// Reason why a matrix could not be restored.
#[derive(Debug)]
pub(crate) enum Restored {
    /// The packed file must not be used, for this reason.
    Damaged(String),
    /// The device failed.
    Device(BackendError),
    /// The checkpoint that the matrix is packed from can't be read.
    Checkpoint(ModelError),
}

impl From<BackendError> for Restored {
    fn from(error: BackendError) -> Self {
        Self::Device(error)
    }
}

impl Reader {
    /// Opens a packed file and checks header, footer and index. Matrices are checked as they
    /// are read.
    pub(super) fn open(file: File, key: &Hash) -> Result<Self, String> {
        let index = index(&file, key).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it was cut off".to_owned(),
            _ => error.to_string(),
        })?;
        Ok(Self {
            file,
            entries: index.matrices.into_iter(),
        })
    }

    /// Reads the next matrix, which must be `[rows, cols]`, in `format`.
    pub fn restore<B: Backend>(
        &mut self,
        backend: &mut B,
        rows: usize,
        cols: usize,
        format: WeightFormat,
    ) -> Result<B::Matrix, Restored> {
        let damaged = |why: &str| Restored::Damaged(why.to_owned());
        let entry = self
            .entries
            .next()
            .filter(|entry| (entry.rows, entry.cols) == (rows, cols))
            .ok_or_else(|| damaged("its matrices are not the model's"))?;
        let (file, fault) = (&self.file, Mutex::new(None));
        let matrix = backend.restore_matrix(rows, cols, format, SEGMENT, &|offset, part| {
            if let Err(why) = read(file, &entry, offset, part) {
                *fault.lock().unwrap_or_else(|broken| broken.into_inner()) = Some(why);
            }
        });
        let matrix = matrix?;
        let fault = fault.into_inner();
        if let Some(why) = fault.unwrap_or_else(|broken| broken.into_inner()) {
            return Err(Restored::Damaged(why));
        }
        if backend.matrix_data(&matrix).len() as u64 != entry.length {
            return Err(damaged("a matrix is not as large as it has to be"));
        }
        Ok(matrix)
    }
}

/// Reads the segment of a matrix that begins at `offset`, and checks its hash.
fn read(file: &File, entry: &Entry, offset: usize, part: &mut [u8]) -> Result<(), String> {
    let expected = entry
        .segments
        .get(offset / SEGMENT)
        .ok_or("a matrix is shorter than it has to be")?;
    let mut hasher = blake3::Hasher::new();
    let from = entry.offset.checked_add(offset as u64);
    let mut from = from.ok_or("a matrix lies outside the file")?;
    for piece in part.chunks_mut(PIECE) {
        file.read_exact_at(piece, from)
            .map_err(|error| error.to_string())?;
        hasher.update(piece);
        from += piece.len() as u64;
    }
    if hasher.finalize().to_hex().as_str() == expected {
        Ok(())
    } else {
        Err("a checksum does not match".to_owned())
    }
}

/// Reads the index and checks it against footer and header.
fn index(file: &File, key: &Hash) -> io::Result<Index> {
    let wrong = |why: &str| io::Error::other(why.to_owned());
    let cut_off = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let end = file.metadata()?.len();
    let footer_at = end.checked_sub(FOOTER as u64).ok_or_else(cut_off)?;
    let mut footer = [0; FOOTER];
    file.read_exact_at(&mut footer, footer_at)?;
    let footer = Footer::from_bytes(&footer).ok_or_else(cut_off)?;
    if footer.offset < PAGE || footer.offset.checked_add(footer.length) != Some(footer_at) {
        return Err(wrong("its index is not where it has to be"));
    }
    if footer.length > LARGEST_INDEX {
        return Err(wrong("its index is too large"));
    }
    let mut header = [0; PAGE as usize];
    file.read_exact_at(&mut header, 0)?;
    let mut index = vec![0; usize::try_from(footer.length).map_err(|_| cut_off())?];
    file.read_exact_at(&mut index, footer.offset)?;
    if header != layout::header(key) || layout::hash(key, &index) != footer.hash {
        return Err(wrong("the checksum of its index does not match"));
    }
    Ok(serde_json::from_slice(&index)?)
}
