//! Adapters in a worker: read beside its steps, and placed between two of them.

use lockstep_backend::Backend;
use lockstep_model::{AdapterReader, ReadAdapter};

use super::{Worker, WorkerError};

impl<B: Backend> Worker<B> {
    /// Returns a reader of adapters for this rank. It reads on any thread, while steps go on.
    pub fn adapter_reader(&self) -> AdapterReader {
        self.transformer.adapter_reader()
    }

    /// Puts an adapter in `place`. All ranks do so between the same two steps; requests of the
    /// adapter that was there have ended.
    ///
    /// # Errors
    /// [`WorkerError::Model`] for a place that there is no room for. It ends the worker.
    pub fn place_adapter(&mut self, place: u16, adapter: &ReadAdapter) -> Result<(), WorkerError> {
        let placed = self
            .transformer
            .place_adapter(&mut self.backend, place, adapter);
        placed.map_err(Into::into)
    }

    /// Takes the adapter out of `place`; its requests have ended.
    pub fn clear_adapter(&mut self, place: u16) {
        self.transformer.clear_adapter(place);
    }
}
