//! What happens between a batch's way to the device and its pass.

use lockstep_backend::{Backend, Batch, ChainBatch};

use super::Transformer;
use crate::{ModelError, Tables};

/// A target whose batch is staged, and has not run.
pub struct Staged<'a, B: Backend> {
    /// The batch, whose drafts a device may still write.
    pub inputs: &'a mut B::Inputs,
    /// This rank's rows of the tables of tokens.
    pub tables: Tables<'a, B>,
    /// What the pass before kept, as [`Transformer::features`].
    pub features: Option<&'a B::Tensor>,
}

/// Queues what a device drafts.
pub type DraftStaged<'a, B> = dyn FnMut(&mut B, Staged<'_, B>) -> Result<(), ModelError> + 'a;

impl<B: Backend> Transformer<B> {
    /// What drafts may read and write now.
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

    /// Lets `record` run where a batch without anything is staged, with chains.
    ///
    /// # Errors
    /// Those of `record`; [`ModelError::Backend`].
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
