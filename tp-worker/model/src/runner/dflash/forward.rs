//! Passes of a DFlash model: over the context, and over blocks.

use std::ops::Range;

use lockstep_backend::{Axis, Backend, BackendError, Batch, Linear, Owners, Row, Rows};

use super::DflashModel;
use crate::{ModelCache, ModelError, Tables, blocks::Norm, runner::limits::fits};

impl<B: Backend> DflashModel<B> {
    /// Writes keys and values of the target's hidden states, the rows `rows` of `features`, to
    /// the cells of `batch`, token after token. Only positions and cells of the batch are read.
    /// The cache must be the same in every call.
    ///
    /// # Errors
    /// Before anything ran: [`ModelError::TooLarge`] when the batch exceeds the limits,
    /// [`ModelError::HiddenInputs`] when `rows` are fewer or more than the tokens.
    /// [`ModelError::Backend`] when the device fails.
    ///
    /// # Panics
    /// Devices panic when `features` has another width or too few rows.
    pub fn take_in(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        features: &B::Tensor,
        rows: &[u32],
        batch: &Batch<'_>,
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        let (tokens, fed) = (batch.tokens.len(), rows.len());
        if tokens != fed {
            return Err(ModelError::HiddenInputs { tokens, fed });
        }
        self.outputs = 0;
        if tokens == 0 {
            return Ok(());
        }
        // Nobody attends: tokens outside of rows leave their keys and values alone.
        let stored = Batch {
            rows: &[],
            ..*batch
        };
        backend.stage(&stored, &mut self.inputs)?;
        let b = &mut self.buffers;
        b.layer.set_rows(backend, tokens, tokens);
        backend.set_rows(&mut b.features, tokens);
        backend.gather_rows(features, Rows::List(rows), &mut b.features);
        let (weights, context) = (&self.weights, &self.context);
        weights.fc.run(backend, &b.features, &mut b.layer.residual);
        let (states, normed) = (&b.layer.residual, &mut b.layer.normed);
        weights.hidden_norm.run(backend, states, normed);
        for layer in &weights.layers {
            let (normed, mixers) = (&b.layer.normed, &mut b.layer.mixers);
            layer.mix(backend, context, normed, mixers, cache, &self.inputs)?;
        }
        Ok(())
    }

    /// Runs the model over blocks, each a row of `batch` whose mask shows every token the whole
    /// block. Causal layers take the rows without their masks. Keys and values go to
    /// `batch.cells`. Keeps the outputs until the next pass; ignores `batch.logit_tokens`: see
    /// [`Self::logits`]. Cache and tables must be the same in every call.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`] before anything ran, when the batch exceeds the limits.
    /// [`ModelError::Backend`] when the device fails: there are no outputs then.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        batch: &Batch<'_>,
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        self.outputs = 0;
        let tokens = batch.tokens.len();
        if tokens == 0 {
            return Ok(());
        }
        backend.stage(batch, &mut self.inputs)?;
        if let Some(causal) = &mut self.causal {
            self.rows.clear();
            let plain = batch.rows.iter().map(|row| Row { mask: None, ..*row });
            self.rows.extend(plain);
            let plain = Batch {
                rows: &self.rows,
                masks: &[],
                ..*batch
            };
            backend.stage(&plain, causal)?;
        }
        self.run(backend, cache, tables, tokens)?;
        self.outputs = tokens;
        Ok(())
    }

    /// Runs embedding and layers over the staged blocks.
    fn run(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tables: Tables<'_, B>,
        tokens: usize,
    ) -> Result<(), BackendError> {
        let (weights, context, b) = (&self.weights, &self.context, &mut self.buffers);
        b.layer.set_rows(backend, tokens, tokens);
        let scale = self.model.multipliers.embedding;
        backend.embed(
            tables.embedding,
            0,
            scale,
            &self.inputs,
            &mut b.layer.residual,
        );
        let (stream, normed) = (&b.layer.residual, &mut b.layer.normed);
        weights.norm_before(0).run(backend, stream, normed);
        for (number, layer) in weights.layers.iter().enumerate() {
            let causal = self.causal.as_ref().filter(|_| self.spec.causal[number]);
            let inputs = causal.unwrap_or(&self.inputs);
            let (normed, mixers) = (&b.layer.normed, &mut b.layer.mixers);
            layer.mix(backend, context, normed, mixers, cache, inputs)?;
            let next = Norm::operand(weights.norm_before(number + 1));
            let all = b.layer.second_half(layer, None);
            layer.finish(backend, context, all, Some(next))?;
        }
        Ok(())
    }

    /// Returns the logits of the last pass's outputs in the rows `rows`, `[rows, vocab]`, on
    /// the host.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`] for more rows than a block of logits has;
    /// [`ModelError::NoHiddenState`] for a row that the last pass did not have.
    pub fn logits(
        &mut self,
        backend: &mut B,
        tables: Tables<'_, B>,
        rows: &[u32],
    ) -> Result<&[f32], ModelError> {
        fits("draft logits", rows.len(), self.limits.logit_block_rows)?;
        let count = self.outputs;
        if let Some(&index) = rows.iter().find(|row| **row as usize >= count) {
            let what = "output";
            return Err(ModelError::NoHiddenState { what, index, count });
        }
        if rows.is_empty() {
            return Ok(&[]);
        }
        let b = &mut self.buffers;
        backend.set_rows(&mut b.head_input, rows.len());
        backend.gather_rows(&b.layer.normed, Rows::List(rows), &mut b.head_input);
        backend.set_rows(&mut b.logits, rows.len());
        backend.matmul(&b.head_input, Linear::unbiased(tables.head), &mut b.logits);
        if let Some(scaling) = self.scaling {
            backend.scale_logits(&mut b.logits, scaling);
        }
        let owners = Owners {
            widths: &[self.vocab],
            rows: &[Range {
                start: 0,
                end: rows.len(),
            }],
        };
        Ok(backend.gather_to_host(Axis::Alone, &b.logits, owners, &mut b.host_logits)?)
    }
}
