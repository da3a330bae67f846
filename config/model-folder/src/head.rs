//! Comparison of a stored output head with the embedding. They may differ even if `config.json`
//! ties them.

use std::fs::File;
use std::io;
use std::path::Path;

use lockstep_files::weights::{TensorPlace, WeightFile, weight_files};
use lockstep_files::{on_reader_thread, read_exact_at};
use lockstep_types::TensorNames;

/// Bytes that are compared at a time.
const PIECE: u64 = 1 << 20;

/// Returns true if an output head is stored that is not the embedding, bit for bit. Bytes are
/// read only if both tables exist and agree in type and shape, up to the first difference.
///
/// # Errors
/// The errors of reading the tables. Missing or damaged files are reported by the code that
/// loads the weights.
pub(crate) fn differs(folder: &Path, names: &TensorNames) -> io::Result<bool> {
    let Ok(Some(files)) = weight_files(folder) else {
        return Ok(false);
    };
    let table = |name: &String| Table::find(&files, &format!("{name}.weight"));
    match [&names.embedding, &names.head].map(table) {
        [Some(embedding), Some(head)] => Ok(!embedding.equals(&head)?),
        _ => Ok(false),
    }
}

/// A table in its file.
struct Table<'a> {
    place: &'a TensorPlace,
    file: &'a File,
}

impl<'a> Table<'a> {
    /// Finds the table in the first file that has it.
    fn find(files: &'a [WeightFile], name: &str) -> Option<Self> {
        let mut found = files.iter().filter_map(|WeightFile { file, tensors, .. }| {
            let place = tensors.get(name)?;
            Some(Self { place, file })
        });
        found.next()
    }

    fn equals(&self, other: &Self) -> io::Result<bool> {
        let (place, theirs) = (self.place, other.place);
        if (place.dtype, &place.shape) != (theirs.dtype, &theirs.shape) {
            return Ok(false);
        }
        let (own, others) = (self.file.try_clone()?, other.file.try_clone()?);
        let (begin, theirs) = (place.bytes.start, theirs.bytes.start);
        let bytes = place.bytes.end - begin;
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
