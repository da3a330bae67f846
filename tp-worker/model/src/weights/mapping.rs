//! A file mapped into memory.

use std::{fs::File, path::Path};

use memmap2::{Advice, Mmap};

use crate::ModelError;

/// Maps `path` read-only.
///
/// # Errors
/// [`ModelError::Read`].
pub(super) fn map(path: &Path) -> Result<Mmap, ModelError> {
    let read = |source| ModelError::Read {
        file: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(read)?;
    #[expect(unsafe_code, reason = "mapping a file has no safe interface")]
    // SAFETY: the mapping is private and read-only and lives no longer than
    // loading takes. Every access is bounded by the length it was mapped with.
    // Weight files are written once; whoever truncates one in place while it
    // is being loaded ends the process with SIGBUS, which the launcher reports.
    let mapping = unsafe { Mmap::map(&file) }.map_err(read)?;
    // Advice only: a kernel that refuses it still reads the file.
    let _ = mapping.advise(Advice::WillNeed);
    Ok(mapping)
}
