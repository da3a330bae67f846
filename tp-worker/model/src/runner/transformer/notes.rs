//! Notes that ranks bring to each other as a pass begins.

use lockstep_backend::{Backend, BackendError, Exchanged, NoteShape, Notes};
use lockstep_types::Dtype;

use super::Transformer;
use crate::ModelError;

/// Takes room for notes of `shape`, and gives it where passes take them along.
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
    /// Whether ranks' notes travel with its passes, first of all that ranks exchange.
    pub fn takes_notes(&self) -> bool {
        self.notes.is_some()
    }

    /// The notes of all ranks that came with the last pass, also one that ended with
    /// [`ModelError::NotesDiffer`]; none where they don't travel with passes.
    pub fn notes<'a>(&self, backend: &'a mut B) -> Notes<'a> {
        match (self.notes, backend.notes()) {
            (Some(_), Some(device)) => device.came(),
            _ => Notes::default(),
        }
    }

    /// Brings ranks' notes to each other, as a pass begins.
    pub(super) fn exchange_notes(&self, backend: &mut B) -> Result<(), BackendError> {
        match (self.notes, backend.notes()) {
            (Some(_), Some(device)) => device.exchange(),
            _ => Ok(()),
        }
    }

    /// What that is, as devices exchange it: words go as floats.
    pub(super) fn noted_words(&self) -> impl Iterator<Item = Exchanged> {
        let ranks = self.shard.topology.world.size;
        let words = self.notes.map_or(0, |shape| shape.words);
        let lens = std::iter::repeat_n(words, ranks);
        Exchanged::gather(self.context.axis, lens, Dtype::Float32)
    }
}

/// Checks what came with a pass that has been waited for, if any `travel` with it, before
/// anything of it is taken for a result.
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
