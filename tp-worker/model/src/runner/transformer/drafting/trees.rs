//! Trees that a whole model drafts.

use lockstep_backend::{Backend, BackendError};

use super::super::Transformer;
use crate::{DraftPasses, ModelCache, runner::draft_passes::DraftPassSize};

impl<B: Backend> Transformer<B> {
    /// Runs the passes of some trees, level by level. Each pass runs over all nodes that are
    /// expanded so far, because a level can't mask cells that an earlier level wrote to the
    /// cache.
    pub(super) fn run_trees(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        trees: &mut DraftPasses<B>,
        DraftPassSize { key, levels }: DraftPassSize,
        verified: &mut B::Inputs,
    ) -> Result<(), BackendError> {
        let (passes, model) = (trees.tree_levels(key), &mut *self);
        let mut work = |backend: &mut B| {
            if let Some(device) = backend.drafter() {
                device.begin(verified, &mut model.inputs, key, passes.first);
            }
            for level in 0..levels {
                let (tokens, wanted) = passes.tokens(level);
                model.draft_level(backend, cache, tokens, wanted)?;
                if let Some(device) = backend.drafter().and_then(|device| device.trees()) {
                    let (logits, inputs) = (&model.buffers.logits, &mut model.inputs);
                    device.grow((logits, None), level, verified, inputs, passes.pass);
                }
            }
            Ok(())
        };
        backend.pass(&mut trees.passes, key, &mut work)
    }
}
