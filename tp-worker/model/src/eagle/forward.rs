//! A head's pass.

use lockstep_backend::{Backend, BackendError, Batch};

use super::{EagleHead, Wiring};
use crate::{ModelError, Tables};

impl<B: Backend> EagleHead<B> {
    /// Runs the head over `batch.tokens`, the token after each position, with
    /// the hidden inputs fed since the last pass; writes keys and values at
    /// `batch.cells` and keeps the outputs, `[tokens, hidden]`, until the next
    /// pass. `batch.logit_tokens` is not looked at: see [`Self::logits`]. Cache
    /// and tables are the same in every call.
    ///
    /// # Errors
    /// Before anything ran: [`ModelError::TooLarge`] when the batch exceeds the
    /// limits, [`ModelError::HiddenInputs`] when fewer or more hidden states
    /// were fed. [`ModelError::Backend`] when the device fails: there are no
    /// outputs then, and hidden states have to be fed again; roots stay.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        let (tokens, fed) = (batch.tokens.len(), self.fed);
        if tokens != fed {
            return Err(ModelError::HiddenInputs { tokens, fed });
        }
        (self.fed, self.outputs) = (0, 0);
        self.buffers.set_rows(backend, tokens);
        if tokens == 0 {
            return Ok(());
        }
        backend.stage(batch, &mut self.inputs)?;
        let mut passes = std::mem::take(&mut self.passes);
        let head = &mut *self;
        let mut work = |backend: &mut B| head.run(backend, cache, tables);
        let done = backend.pass(&mut passes, batch.key(), &mut work);
        self.passes = passes;
        done?;
        self.outputs = tokens;
        Ok(())
    }

    /// The pass over the batch that is staged.
    fn run(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        tables: Tables<'_, B>,
    ) -> Result<(), BackendError> {
        let (shape, eps, hidden) = (&self.shape, self.shape.eps, self.hidden);
        let (b, inputs) = (&mut self.buffers, &self.inputs);
        let table = self.embedding.as_ref().unwrap_or(tables.embedding);
        backend.embed(table, 0, inputs, &mut b.embedded);
        let input = match &self.wiring {
            Wiring::Eagle { input_norm } => {
                backend.place_columns(&b.embedded, &mut b.joined, 0);
                backend.place_columns(&b.hidden, &mut b.joined, hidden);
                let (residual, bias) = (&mut b.layer.residual, self.fc_bias.as_ref());
                backend.matmul(&b.joined, &self.fc, bias, residual);
                match input_norm {
                    None => backend.as_operand(residual, &mut b.layer.normed),
                    Some(weight) => {
                        backend.rms_norm(residual, weight, eps, &mut b.layer.normed);
                        &b.layer.normed
                    }
                }
            }
            Wiring::Eagle3 {
                embedding_norm,
                hidden_norm,
                ..
            } => {
                let normed = &mut b.layer.normed;
                backend.rms_norm(&b.embedded, embedding_norm, eps, normed);
                backend.place_columns(normed, &mut b.joined, 0);
                backend.rms_norm(&b.hidden, hidden_norm, eps, normed);
                backend.place_columns(normed, &mut b.joined, hidden);
                backend.place_columns(&b.hidden, &mut b.layer.residual, 0);
                &b.joined
            }
        };
        let layer = &self.layer;
        let attention = &mut b.layer.attention;
        layer.attend(backend, shape, input, attention, cache, inputs);
        // What the layer leaves normed is not read: roots are kept unnormed, so
        // logits norm what they are asked for.
        layer.finish(backend, shape, b.layer.second_half(), &layer.post_norm)
    }
}
