//! Trees that a whole model drafts.

use lockstep_backend::{Backend, BackendError};

use super::Transformer;
use crate::{Chains, runner::chains::ChainsSize};

impl<B: Backend> Transformer<B> {
    /// The passes of some trees, level by level. Each runs over all nodes that are
    /// expanded so far, for what a level wrote to the cache the next one could not mask.
    pub(super) fn run_trees(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        trees: &mut Chains<B>,
        ChainsSize { key, levels }: ChainsSize,
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
