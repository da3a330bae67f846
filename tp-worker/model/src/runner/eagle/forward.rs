//! The pass of a head.

use lockstep_backend::{Backend, BackendError, Batch, PassKey};

use super::EagleHead;
use crate::{
    ModelCache, ModelError, Tables,
    blocks::Norm,
    models::eagle::{HeadLayer, Wiring},
};

impl<B: Backend> EagleHead<B> {
    /// Runs the head over `batch.tokens`, the token after each position, with the hidden
    /// inputs fed since the last pass. Writes keys and values at `batch.cells`. Keeps the
    /// outputs, `[tokens, hidden]`, until the next pass. Ignores `batch.logit_tokens`: see
    /// [`Self::logits`]. Cache and tables must be the same in every call.
    ///
    /// # Errors
    /// Before anything ran: [`ModelError::TooLarge`] when the batch exceeds the limits,
    /// [`ModelError::HiddenInputs`] when fewer or more hidden states were fed than there are
    /// tokens. [`ModelError::Backend`] when the device fails: there are no outputs then,
    /// hidden states have to be fed again, and roots stay.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
    ) -> Result<(), ModelError> {
        let tokens = self.begin(backend, batch)?;
        if tokens > 0 {
            self.run_whole(backend, cache, tables, batch)?;
        }
        self.outputs = tokens;
        Ok(())
    }

    /// Runs the head over text, like [`Self::forward`], but keeps only the outputs of
    /// `batch.logit_tokens`, as the roots of `slots`, in order. Only keys and values of the
    /// other tokens are ever read, so the layer ends with its attention for them. It is for heads of
    /// one layer; several layers have [`Self::take_in_turn`].
    ///
    /// # Errors
    /// The errors of [`Self::forward`]. Before anything ran also
    /// [`ModelError::NoHiddenState`] for a slot that the head has no root for, and
    /// [`ModelError::TooLarge`] when there are not as many slots as roots, or more than the
    /// head has.
    pub fn take_in(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
        slots: &[u32],
    ) -> Result<(), ModelError> {
        let roots = batch.logit_tokens.len();
        self.check_roots(roots, slots)?;
        let tokens = self.begin(backend, batch)?;
        if tokens == 0 {
            return Ok(());
        }
        // The second half runs over the wanted rows alone if not all rows are wanted.
        let whole = roots == tokens;
        match whole {
            true => self.run_whole(backend, cache, tables, batch)?,
            false => self.run_narrow(backend, cache, tables, batch)?,
        }
        let layer = &self.buffers.layer;
        let outputs = if whole { &layer.residual } else { &layer.delta };
        if roots > 0 {
            let from = &self.numbers[..roots];
            backend.copy_rows(outputs, from, &mut self.buffers.roots[0], slots);
        }
        Ok(())
    }

    /// Checks `batch` and makes room for a pass over it, which takes the fed hidden states.
    /// Returns the number of tokens.
    pub(super) fn begin(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
    ) -> Result<usize, ModelError> {
        self.limits.check(batch)?;
        let (tokens, fed) = (batch.tokens.len(), self.fed);
        if tokens != fed {
            return Err(ModelError::HiddenInputs { tokens, fed });
        }
        (self.fed, self.outputs) = (0, 0);
        self.buffers.set_rows(backend, tokens);
        Ok(tokens)
    }

    /// Runs the pass over all tokens, as a device may record it.
    pub(super) fn run_whole(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        backend.stage(batch, &mut self.inputs)?;
        self.run_repeated(backend, cache, tables, batch.key())
    }

    /// Runs the pass over the staged batch of the size `key`.
    fn run_repeated(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        key: PassKey,
    ) -> Result<(), BackendError> {
        let padded = backend.pad(key, &mut self.inputs);
        self.buffers.set_rows(backend, padded.tokens);
        backend.set_rows(&mut self.buffers.hidden, padded.tokens);
        let turn = self.turn;
        let mut passes = std::mem::take(&mut self.passes[turn]);
        let head = &mut *self;
        let mut work = |backend: &mut B| {
            head.attend(backend, cache, tables)?;
            // The layer's normed output is not read, so any norm does. Roots are kept unnormed,
            // and `logits` norms the states that it reads.
            let layer = &head.weights.layers[turn].layer;
            let next = layer.mlp_norm.as_ref().map(Norm::operand);
            let all = head.buffers.layer.second_half(layer, None);
            layer.finish(backend, &head.context, all, next)
        };
        let done = backend.pass(&mut passes, padded, &mut work);
        self.passes[turn] = passes;
        self.buffers.set_rows(backend, key.tokens);
        backend.set_rows(&mut self.buffers.hidden, key.tokens);
        done
    }

    /// Records passes, like [`crate::Transformer::record`], before anything was fed.
    ///
    /// # Errors
    /// [`ModelError::Backend`].
    pub fn record(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        let sizes = backend.repeated(&self.inputs);
        let mut left = self.layers() * sizes.len();
        for turn in 0..self.layers() {
            self.turn = turn;
            for key in &sizes {
                backend.stage(&Batch::default(), &mut self.inputs)?;
                self.run_repeated(backend, cache, tables, *key)?;
                left -= 1;
                each(left);
            }
        }
        (self.outputs, self.turn) = (0, 0);
        Ok(())
    }

    /// Runs the pass whose second half covers the wanted tokens alone.
    fn run_narrow(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        backend.stage(batch, &mut self.inputs)?;
        self.attend(backend, cache, tables)?;
        let (b, wanted) = (&mut self.buffers, batch.logit_tokens.len());
        if wanted == 0 {
            return Ok(());
        }
        let layer = &self.weights.layers[self.turn].layer;
        let mixed = &mut b.mixed_wanted;
        let some = b
            .layer
            .narrow(backend, layer, &self.inputs, wanted, mixed, None);
        let next = layer.mlp_norm.as_ref().map(Norm::operand);
        layer.finish(backend, &self.context, some, next)
    }

    /// Runs the pass over the staged batch, up to the layer's mixer.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub(super) fn attend(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
    ) -> Result<(), BackendError> {
        let (context, hidden) = (&self.context, self.hidden);
        let (b, inputs) = (&mut self.buffers, &self.inputs);
        let HeadLayer { fc, layer, wiring } = &self.weights.layers[self.turn];
        let table = self.weights.embedding.as_ref().unwrap_or(tables.embedding);
        backend.embed(table, 0, 1.0, inputs, &mut b.embedded);
        let input = match wiring {
            Wiring::Eagle { input_norm } => {
                backend.place_columns(&b.embedded, &mut b.joined, 0);
                backend.place_columns(&b.hidden, &mut b.joined, hidden);
                let residual = &mut b.layer.residual;
                fc.run(backend, &b.joined, residual);
                match input_norm {
                    None => backend.as_operand(residual, &mut b.layer.normed),
                    Some(norm) => {
                        norm.run(backend, residual, &mut b.layer.normed);
                        &b.layer.normed
                    }
                }
            }
            Wiring::Eagle3 {
                embedding_norm,
                hidden_norm,
                normed_residual,
                ..
            } => {
                b.join_normed(backend, embedding_norm, hidden_norm, hidden);
                let begin = match normed_residual {
                    true => &b.layer.normed,
                    false => &b.hidden,
                };
                backend.place_columns(begin, &mut b.layer.residual, 0);
                &b.joined
            }
            Wiring::Nextn {
                embedding_norm,
                hidden_norm,
                input_norm,
                ..
            } => {
                b.join_normed(backend, embedding_norm, hidden_norm, hidden);
                let residual = &mut b.layer.residual;
                fc.run(backend, &b.joined, residual);
                input_norm.run(backend, residual, &mut b.layer.normed);
                &b.layer.normed
            }
        };
        layer.mix(backend, context, input, &mut b.layer.mixers, cache, inputs)
    }
}
