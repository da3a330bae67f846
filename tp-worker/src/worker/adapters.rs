//! Adapters of a worker: each rank reads them aside, then all place them between two steps.

use lockstep_backend::Backend;
use lockstep_model::{AdapterReader, ReadAdapter};

use super::{Worker, WorkerError};

impl<B: Backend + 'static> Worker<B> {
    /// Returns a reader of adapters for this rank. It may read on another thread while plans run.
    pub fn adapter_reader(&self) -> AdapterReader {
        self.transformer.adapter_reader()
    }

    /// Puts an adapter that [`Self::adapter_reader`] has read in `place`. The next step's requests
    /// may have it. All ranks call this between the same two steps, with adapters of one content.
    ///
    /// # Errors
    /// [`WorkerError`] for a place that there is no room for, or if the device fails.
    pub fn place_adapter(&mut self, place: u16, adapter: &ReadAdapter) -> Result<(), WorkerError> {
        Ok(self
            .transformer
            .place_adapter(&mut self.backend, place, adapter)?)
    }

    /// Takes the adapter at `place` away, if there is one. No request may have it.
    pub fn clear_adapter(&mut self, place: u16) {
        self.transformer.clear_adapter(place);
    }
}
