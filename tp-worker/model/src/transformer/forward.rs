//! The ragged extend.

use lockstep_backend::{Backend, BackendError, Batch, PassKey, Rows};

use super::{LogitBlock, Transformer};
use crate::ModelError;

impl<B: Backend> Transformer<B> {
    /// Runs `batch`: writes its keys and values into `cache` and hands the
    /// logits of `batch.logit_tokens` to `sink`, block by block in order, on
    /// the rank that leads alone. All ranks of its axis must call it with the
    /// same batch.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`] before anything ran when the batch exceeds the
    /// limits; [`ModelError::Backend`] when a collective fails.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        let key = batch.key();
        if let Some(capture) = &mut self.capture {
            capture.begin(backend, key.tokens);
        }
        if key.tokens == 0 {
            return Ok(());
        }
        backend.stage(batch, key, &mut self.inputs)?;
        self.buffers.set_rows(backend, key);
        let model = &mut *self;
        backend.pass(key, &mut |backend| model.run(backend, cache, key))?;
        self.logits(backend, key, sink)
    }

    /// Embedding and layers, over the batch that is staged.
    fn run(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        key: PassKey,
    ) -> Result<(), BackendError> {
        let b = &mut self.buffers.layer;
        let (first, eps) = (self.shard.vocab.start as u32, self.model.rms_norm_eps);
        backend.embed(&self.embedding, first, &self.inputs, &mut b.residual);
        backend.all_reduce(self.shape.axis, &mut b.residual)?;
        let norm = self.input_norms.first().unwrap_or(&self.norm);
        backend.rms_norm(&b.residual, norm, eps, &mut b.normed);
        for number in 0..self.layers.len() {
            self.layer(backend, cache, number, key)?;
        }
        if let Some(capture) = &mut self.capture {
            capture.last_hidden(backend, &self.buffers.layer.normed);
        }
        Ok(())
    }

    /// Runs layer `number`; the second half of the last one over the wanted
    /// tokens alone where nothing else is asked of it, and not at all where no
    /// logits are.
    fn layer(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        number: usize,
        key: PassKey,
    ) -> Result<(), BackendError> {
        let narrow = number + 1 == self.layers.len() && !self.keeps_last_hidden();
        let (layer, shape, inputs) = (&self.layers[number], &self.shape, &self.inputs);
        let b = &mut self.buffers;
        if let Some(capture) = &mut self.capture {
            capture.layer_input(backend, number, &b.layer.residual);
        }
        let attention = &mut b.layer.attention;
        layer.attend(backend, shape, &b.layer.normed, attention, cache, inputs);
        let next_norm = self.input_norms.get(number + 1).unwrap_or(&self.norm);
        if !narrow || key.wanted == key.tokens {
            let all = b.layer.second_half();
            return layer.finish(backend, shape, all, next_norm);
        }
        if key.wanted > 0 {
            let wanted = b.narrow(backend, inputs, key.wanted);
            layer.finish(backend, shape, wanted, next_norm)?;
            b.set_rows(backend, key);
        }
        Ok(())
    }

    /// The head over the wanted rows, in blocks.
    fn logits(
        &mut self,
        backend: &mut B,
        key: PassKey,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        let wide = self.keeps_last_hidden();
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let vocab = self.model.vocab_size;
        let (axis, block_rows) = (self.shape.axis, self.limits.logit_block_rows);
        let b = &mut self.buffers;
        // The wanted rows are among those of all tokens, or all that there are.
        let normed = if wide { key.tokens } else { key.wanted };
        backend.set_rows(&mut b.layer.normed, normed);
        for first in (0..key.wanted).step_by(block_rows) {
            let block = first..key.wanted.min(first + block_rows);
            backend.set_rows(&mut b.logits, block.len());
            if block.len() == normed {
                backend.matmul(&b.layer.normed, head, None, &mut b.logits);
            } else {
                backend.set_rows(&mut b.head_input, block.len());
                let rows = match wide {
                    true => Rows::Wanted(&self.inputs, block),
                    false => Rows::List(&self.numbers[block]),
                };
                backend.gather_rows(&b.layer.normed, rows, &mut b.head_input);
                backend.matmul(&b.head_input, head, None, &mut b.logits);
            }
            let logits =
                backend.gather_to_host(axis, &b.logits, &self.vocab_widths, &mut b.host_logits)?;
            if backend.leads(axis) {
                sink(LogitBlock {
                    first,
                    logits,
                    vocab,
                });
            }
        }
        Ok(())
    }
}
