//! Work between the staging of a batch and its pass.

use lockstep_backend::{Backend, Batch, ChainBatch};

use super::Transformer;
use crate::{ModelError, Tables};

/// A target whose batch is staged and has not run yet.
pub struct Staged<'a, B: Backend> {
    /// The batch, whose drafts a device may still write.
    pub inputs: &'a mut B::Inputs,
    /// This rank's rows of the tables of tokens.
    pub tables: Tables<'a, B>,
    /// Hidden states that the pass before kept, see [`Transformer::features`].
    pub features: Option<&'a B::Tensor>,
}

/// Callback that queues the passes that a device drafts in.
pub type DraftStaged<'a, B> = dyn FnMut(&mut B, Staged<'_, B>) -> Result<(), ModelError> + 'a;

impl<B: Backend> Transformer<B> {
    /// Returns the data that drafts may read and write now.
    pub(super) fn staged(&mut self) -> Staged<'_, B> {
        Staged {
            inputs: &mut self.inputs,
            tables: Tables {
                embedding: &self.weights.embedding,
                head: self.weights.head(),
            },
            features: self.capture.as_ref().map(super::Capture::features),
        }
    }

    /// Runs `record` while an empty batch with no chains is staged.
    ///
    /// # Errors
    /// The errors of `record`; [`ModelError::Backend`].
    pub fn record_drafts(
        &mut self,
        backend: &mut B,
        record: &mut DraftStaged<'_, B>,
    ) -> Result<(), ModelError> {
        let nothing = Batch::default();
        let batch = Batch {
            chain: Some(ChainBatch {
                first: &nothing,
                requests: &[],
                sources: &[],
                trees: &[],
            }),
            ..nothing
        };
        backend.stage(&batch, &mut self.inputs)?;
        record(backend, self.staged())?;
        Ok(backend.arrive()?)
    }
}
