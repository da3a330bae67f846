//! What one rank does alone must not wait for its peers.

use lockstep_backend::Backend;

use crate::ModelError;

/// Whether the device stands alone, as drafting wants it.
///
/// # Errors
/// [`ModelError::NotSolo`].
pub(crate) fn check<B: Backend>(backend: &B) -> Result<(), ModelError> {
    match backend.group() {
        (_, 1) => Ok(()),
        (rank, ranks) => Err(ModelError::NotSolo { rank, ranks }),
    }
}
