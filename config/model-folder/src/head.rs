//! Comparison of a stored output head with the embedding. They may differ even if `config.json`
//! ties them.

use std::fs::File;
use std::io;
use std::path::Path;

use lockstep_files::{on_reader_thread, read_exact_at};
use lockstep_types::TensorNames;

use crate::tensors::{self, Header, Place};

/// Bytes that are compared at a time.
const PIECE: u64 = 1 << 20;

/// Returns true if an output head is stored that is not the embedding, bit for bit. Bytes are
/// read only if both tables exist and agree in type and shape, up to the first difference.
///
/// # Errors
/// The errors of reading the tables. Missing or damaged files are reported by the code that
/// loads the weights.
pub(crate) fn differs(folder: &Path, names: &TensorNames) -> io::Result<bool> {
    let tables = [&names.embedding, &names.head].map(|name| format!("{name}.weight"));
    let Ok(headers) = tensors::headers(folder, &tables) else {
        return Ok(false);
    };
    let find = |name: &str| {
        let mut found = headers.iter().filter_map(|header| Table::of(header, name));
        found.next()
    };
    match (find(&tables[0]), find(&tables[1])) {
        (Some(embedding), Some(head)) => Ok(!embedding.equals(&head)?),
        _ => Ok(false),
    }
}

/// A table in its file.
struct Table<'a> {
    place: &'a Place,
    file: &'a File,
    /// Place of its first byte in the file.
    begin: u64,
    bytes: u64,
}

impl<'a> Table<'a> {
    /// `None` if the header does not name the table, or the table is not inside of the file.
    fn of(header: &'a Header, name: &str) -> Option<Self> {
        let place = header.places.get(name)?;
        let (begin, end) = place.data_offsets;
        let last = header.data.checked_add(end)?;
        let bytes = end.checked_sub(begin)?;
        let inside = last <= header.file.metadata().ok()?.len();
        inside.then(|| Self {
            place,
            file: &header.file,
            begin: last - bytes,
            bytes,
        })
    }

    fn equals(&self, other: &Self) -> io::Result<bool> {
        let kind = |table: &Self| (table.place.dtype.clone(), table.place.shape.clone());
        if kind(self) != kind(other) || self.bytes != other.bytes {
            return Ok(false);
        }
        let (own, others) = (self.file.try_clone()?, other.file.try_clone()?);
        let (begin, theirs, bytes) = (self.begin, other.begin, self.bytes);
        on_reader_thread(move || {
            let mut pieces = [Vec::new(), Vec::new()];
            for at in (0..bytes).step_by(PIECE as usize) {
                let length = PIECE.min(bytes - at) as usize;
                for (piece, (file, from)) in
                    pieces.iter_mut().zip([(&own, begin), (&others, theirs)])
                {
                    piece.resize(length, 0);
                    read_exact_at(file, piece, from + at)?;
                }
                let [one, other] = &pieces;
                if one != other {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests;
