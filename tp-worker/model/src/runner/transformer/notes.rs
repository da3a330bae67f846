//! Notes that ranks exchange as a pass begins.

use lockstep_backend::{Backend, BackendError, CollectiveCall, NoteShape, Notes};
use lockstep_types::Dtype;

use super::Transformer;
use crate::ModelError;

/// Reserves room for notes of `shape`. Returns `shape` if passes carry the notes.
pub(super) fn prepare<B: Backend>(
    backend: &mut B,
    shape: Option<NoteShape>,
) -> Result<Option<NoteShape>, BackendError> {
    match (shape, backend.notes()) {
        (Some(shape), Some(device)) => device.prepare(shape).map(|()| Some(shape)),
        _ => Ok(None),
    }
}

impl<B: Backend> Transformer<B> {
    /// Returns true if passes carry the ranks' notes, as their first exchange.
    pub fn takes_notes(&self) -> bool {
        self.notes.is_some()
    }

    /// Returns the notes of all ranks that came with the last pass, even if the pass ended
    /// with [`ModelError::NotesDiffer`]. Returns none if passes carry no notes.
    pub fn notes<'a>(&self, backend: &'a mut B) -> Notes<'a> {
        match (self.notes, backend.notes()) {
            (Some(_), Some(device)) => device.came(),
            _ => Notes::default(),
        }
    }

    /// Exchanges the ranks' notes as a pass begins.
    pub(super) fn exchange_notes(&self, backend: &mut B) -> Result<(), BackendError> {
        match (self.notes, backend.notes()) {
            (Some(_), Some(device)) => device.exchange(),
            _ => Ok(()),
        }
    }

    /// Returns the exchange of the notes, as devices count it: words go as floats.
    pub(super) fn noted_words(&self) -> impl Iterator<Item = CollectiveCall> {
        let ranks = self.shard.topology.world.size;
        let words = self.notes.map_or(0, |shape| shape.words);
        let lens = std::iter::repeat_n(words, ranks);
        CollectiveCall::gather(self.context.axis, lens, Dtype::Float32)
    }
}

/// Checks the notes that came with a pass, if notes `travel` with passes. The pass must have
/// been waited for, and no result of it may be used before.
pub(super) fn check<B: Backend>(travel: bool, backend: &mut B) -> Result<(), ModelError> {
    let differ = match backend.notes() {
        Some(device) if travel => device.came().differ,
        _ => false,
    };
    if differ {
        return Err(ModelError::NotesDiffer);
    }
    Ok(())
}
