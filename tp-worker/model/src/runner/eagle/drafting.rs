//! Drafting on the device by a head of one layer: chains, and the first level of trees.

mod trees;

use lockstep_backend::{Backend, BackendError};

use super::{EagleHead, output::Output};
use crate::blocks::Norm;
use crate::{
    DraftPasses, ModelCache, ModelError, Staged, Tables,
    models::eagle::{HeadLayer, Wiring},
    runner::draft_passes::DraftPassSize,
};

impl<B: Backend> EagleHead<B> {
    /// Queues the passes that draft `count` chains or trees, like
    /// [`crate::Transformer::draft_chains`]. The first pass takes in pairs; the target's pass
    /// before has kept their features. No root is read, and none is kept.
    ///
    /// # Errors
    /// [`ModelError::Backend`].
    pub fn draft_chains(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        chains: &mut DraftPasses<B>,
        (count, depth): (usize, usize),
        staged: Staged<'_, B>,
    ) -> Result<(), ModelError> {
        let size = chains.size(count, depth);
        self.run_chains(backend, cache, chains, size, staged)
    }

    /// Records the passes of chains, like [`crate::Transformer::record_chains`].
    ///
    /// # Errors
    /// [`ModelError::Backend`].
    pub fn record_chains(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        chains: &mut DraftPasses<B>,
        staged: Staged<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        let sizes = chains.begin(backend, &self.inputs, &self.limits);
        let Staged {
            inputs,
            tables,
            features,
        } = staged;
        for (done, size) in sizes.iter().enumerate() {
            let staged = Staged {
                inputs: &mut *inputs,
                tables,
                features,
            };
            self.run_chains(backend, cache, chains, *size, staged)?;
            each(sizes.len() - done - 1);
        }
        Ok(())
    }

    fn run_chains(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        chains: &mut DraftPasses<B>,
        DraftPassSize { key, levels }: DraftPassSize,
        staged: Staged<'_, B>,
    ) -> Result<(), ModelError> {
        // The fed states and the outputs of the last pass are written over.
        (self.fed, self.outputs, self.turn) = (0, 0, 0);
        if chains.branches() > 1 {
            return self.run_trees(
                backend,
                cache,
                chains,
                DraftPassSize { key, levels },
                staged,
            );
        }
        let Staged {
            inputs: verified,
            tables,
            features,
        } = staged;
        let Some(features) = features else {
            return Ok(());
        };
        let (first, width, head) = (chains.first(), key.tokens, &mut *self);
        let mut work = |backend: &mut B| {
            if let Some(device) = backend.drafter() {
                device.begin(verified, &mut head.inputs, key, first);
            }
            head.take_features(backend, features, first * width);
            for level in 0..levels {
                let own = if level == 0 { first } else { 1 };
                head.draft_level(backend, cache, tables, level, (own * width, width))?;
                if let Some(device) = backend.drafter() {
                    let (logits, inputs) = (&head.buffers.logits, &mut head.inputs);
                    let ids = head.ids.as_ref();
                    device.advance((logits, ids), level, verified, inputs, key);
                }
            }
            Ok(())
        };
        Ok(backend.pass(&mut chains.passes, key, &mut work)?)
    }

    /// Fills the hidden inputs of the first pass, of up to `tokens` tokens, from `features`.
    pub(super) fn take_features(&mut self, backend: &mut B, features: &B::Tensor, tokens: usize) {
        let b = &mut self.buffers;
        backend.set_rows(&mut b.hidden, tokens);
        let HeadLayer { fc, wiring, .. } = &self.weights.layers[0];
        let norms = match wiring {
            Wiring::Eagle { .. } | Wiring::Nextn { .. } => None,
            Wiring::Eagle3 { feature_norms, .. } => Some(feature_norms),
        };
        let to = match norms {
            None => &mut b.hidden,
            Some(norms) => b.features_for(backend, norms, tokens),
        };
        if let Some(device) = backend.drafter() {
            device.take_sources(features, &self.inputs, to);
        }
        if let Some(norms) = norms {
            b.norm_features(backend, norms, (tokens, self.hidden));
            fc.run(backend, &b.features, &mut b.hidden);
        }
    }

    /// Runs the pass of one level over `tokens` staged tokens, up to the logits of `wanted`
    /// of them. Levels behind the first one want all tokens, and their hidden inputs are the
    /// outputs of the level before.
    pub(super) fn draft_level(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        level: usize,
        (tokens, wanted): (usize, usize),
    ) -> Result<(), BackendError> {
        if level > 0 {
            let b = &mut self.buffers;
            backend.set_rows(&mut b.hidden, tokens);
            // The first level has outputs of its wanted tokens alone.
            let outputs = match level {
                1 => &b.layer.delta,
                _ => &b.layer.residual,
            };
            backend.place_columns(outputs, &mut b.hidden, 0);
            self.go_on(backend, 0, tokens);
        }
        self.buffers.set_rows(backend, tokens);
        self.attend(backend, cache, tables)?;
        let (b, layer) = (&mut self.buffers, &self.weights.layers[0].layer);
        let half = match level {
            0 => {
                let mixed = &mut b.mixed_wanted;
                b.layer
                    .narrow(backend, layer, &self.inputs, wanted, mixed, None)
            }
            _ => b.layer.second_half(layer, None),
        };
        layer.finish(
            backend,
            &self.context,
            half,
            layer.mlp_norm.as_ref().map(Norm::operand),
        )?;
        let outputs = match level {
            0 => &b.layer.delta,
            _ => &b.layer.residual,
        };
        let output = Output {
            normed: &mut b.head_normed,
            logits: &mut b.logits,
            scaling: self.scaling,
        };
        output.compute(backend, &self.weights, 0, tables, (outputs, wanted));
        Ok(())
    }
}
