//! Trees that a head drafts.

use lockstep_backend::{Backend, BackendError, Rows};

use super::super::{EagleHead, output::Output};
use crate::blocks::Norm;
use crate::{
    DraftPasses, ModelCache, ModelError, Staged, Tables, runner::draft_passes::DraftPassSize,
};

impl<B: Backend> EagleHead<B> {
    /// Runs the passes of some trees, level by level. Each pass runs over all nodes that are
    /// expanded so far, because a level can't mask cells that an earlier level wrote to the
    /// cache. The hidden input of a node is its parent's output in the pass before. For
    /// children of a root, it is the wanted output of the first pass.
    pub(super) fn run_trees(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        trees: &mut DraftPasses<B>,
        DraftPassSize { key, levels }: DraftPassSize,
        staged: Staged<'_, B>,
    ) -> Result<(), ModelError> {
        let Staged {
            inputs: verified,
            tables,
            features,
        } = staged;
        let Some(features) = features else {
            return Ok(());
        };
        let (passes, head) = (trees.tree_levels(key), &mut *self);
        let mut work = |backend: &mut B| {
            if let Some(device) = backend.drafter() {
                device.begin(verified, &mut head.inputs, key, passes.first);
            }
            head.take_features(backend, features, passes.first * key.tokens);
            for level in 0..levels {
                let size = passes.tokens(level);
                match level {
                    0 => head.draft_roots(backend, cache, tables, size)?,
                    _ => head.draft_nodes(backend, cache, tables, verified, size)?,
                }
                if let Some(device) = backend.drafter().and_then(|device| device.trees()) {
                    let (logits, inputs) = (&head.buffers.logits, &mut head.inputs);
                    let ids = head.ids.as_ref();
                    device.grow((logits, ids), level, verified, inputs, passes.pass);
                }
            }
            Ok(())
        };
        Ok(backend.pass(&mut trees.passes, key, &mut work)?)
    }

    /// Runs the first pass and keeps its wanted outputs.
    fn draft_roots(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        (tokens, wanted): (usize, usize),
    ) -> Result<(), BackendError> {
        self.draft_level(backend, cache, tables, 0, (tokens, wanted))?;
        let b = &mut self.buffers;
        backend.set_rows(&mut b.tree_roots, wanted);
        backend.place_columns(&b.layer.delta, &mut b.tree_roots, 0);
        Ok(())
    }

    /// Runs the pass over the staged nodes, up to the logits of the wanted ones.
    fn draft_nodes(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        verified: &B::Inputs,
        (tokens, wanted): (usize, usize),
    ) -> Result<(), BackendError> {
        let b = &mut self.buffers;
        backend.set_rows(&mut b.hidden, tokens);
        if let Some(device) = backend.drafter().and_then(|device| device.trees()) {
            let (roots, outputs) = (&b.tree_roots, &b.layer.residual);
            device.take_parents(roots, outputs, verified, &self.inputs, &mut b.hidden);
        }
        self.go_on(backend, 0, tokens);
        self.buffers.set_rows(backend, tokens);
        self.attend(backend, cache, tables)?;
        let b = &mut self.buffers;
        let layer = &self.weights.layers[0].layer;
        layer.finish(
            backend,
            &self.context,
            b.layer.second_half(layer, None),
            layer.mlp_norm.as_ref().map(Norm::operand),
        )?;
        backend.set_rows(&mut b.head_input, wanted);
        let last = Rows::Wanted(&self.inputs, 0..wanted);
        backend.gather_rows(&b.layer.residual, last, &mut b.head_input);
        let output = Output {
            normed: &mut b.head_normed,
            logits: &mut b.logits,
            scaling: self.scaling,
        };
        output.compute(backend, &self.weights, 0, tables, (&b.head_input, wanted));
        Ok(())
    }
}
