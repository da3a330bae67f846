//! Comparison of a stored output head with the embedding. They may differ even if `config.json`
//! ties them.

use std::fs::File;
use std::io;
use std::path::Path;

use lockstep_files::{on_reader_thread, read_exact_at};
use serde::Deserialize;

use crate::tensors::{self, Header};

/// Bytes that are compared at a time.
const PIECE: u64 = 1 << 20;

/// Returns true if an output head is stored that is not the embedding, bit for bit. Bytes are
/// read only if both tables exist and agree in type and shape, up to the first difference.
///
/// # Errors
/// The errors of reading the tables. Missing or damaged files are reported by the code that
/// loads the weights.
pub(crate) fn differs(folder: &Path) -> io::Result<bool> {
    let Ok(headers) = tensors::headers::<Places>(folder) else {
        return Ok(false);
    };
    let find = |of: fn(&Places) -> Option<&Place>| {
        let mut found = headers.iter().filter_map(|header| Table::of(header, of));
        found.next()
    };
    let embedding = find(|places| places.embedding.as_ref());
    let head = find(|places| places.head.as_ref());
    match (embedding, head) {
        (Some(embedding), Some(head)) => Ok(!embedding.equals(&head)?),
        _ => Ok(false),
    }
}

/// Places of the two tables in a header.
#[derive(Deserialize)]
struct Places {
    #[serde(rename = "model.embed_tokens.weight")]
    embedding: Option<Place>,
    #[serde(rename = "lm_head.weight")]
    head: Option<Place>,
}

#[derive(Deserialize)]
struct Place {
    dtype: String,
    shape: Vec<u64>,
    /// First byte, and the byte behind the last one.
    data_offsets: (u64, u64),
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
    fn of(header: &'a Header<Places>, of: fn(&Places) -> Option<&Place>) -> Option<Self> {
        let place = of(&header.says)?;
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
