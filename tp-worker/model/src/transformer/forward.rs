//! The ragged extend.

use lockstep_backend::{Backend, Batch};

use super::{Buffers, Layer, LogitBlock, Transformer};
use crate::ModelError;

impl<B: Backend> Transformer<B> {
    /// Runs `batch`: writes its keys and values into `cache` and hands the
    /// logits of `batch.logit_tokens` to `sink`, block by block in order, on
    /// rank 0 alone. All ranks must call it with the same batch.
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
        self.check(batch)?;
        if batch.tokens.is_empty() {
            return Ok(());
        }
        self.buffers.set_rows(backend, batch.tokens.len());
        let first = self.shard.vocab.start as u32;
        let residual = &mut self.buffers.residual;
        backend.embed(&self.embedding, first, batch.tokens, residual);
        backend.all_reduce(residual)?;
        for number in 0..self.layers.len() {
            self.attend(backend, cache, number, batch);
            if number + 1 == self.layers.len() {
                if batch.logit_tokens.is_empty() {
                    return Ok(());
                }
                if batch.logit_tokens.len() < batch.tokens.len() {
                    self.buffers.narrow(backend, batch.logit_tokens);
                }
            }
            self.finish_layer(backend, number)?;
        }
        self.logits(backend, batch.logit_tokens.len(), sink)
    }

    fn check(&self, batch: &Batch<'_>) -> Result<(), ModelError> {
        let too_large = |what, found, limit| ModelError::TooLarge { what, found, limit };
        let (tokens, limit) = (batch.tokens.len(), self.limits.max_tokens);
        if tokens > limit {
            return Err(too_large("tokens", tokens, limit));
        }
        let positions = batch.positions.iter().max().map_or(0, |p| *p as usize + 1);
        if positions > self.limits.positions {
            return Err(too_large("positions", positions, self.limits.positions));
        }
        Ok(())
    }

    /// From the residual stream to the attention output of layer `number`.
    fn attend(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        number: usize,
        batch: &Batch<'_>,
    ) {
        let eps = self.model.rms_norm_eps;
        let (layer, shape) = (&self.layers[number], &self.attention);
        let Buffers {
            residual,
            delta,
            normed,
            qkv,
            attended,
            ..
        } = &mut self.buffers;
        if number == 0 {
            backend.rms_norm(residual, &layer.input_norm, eps, normed);
        } else {
            backend.add_rms_norm(residual, delta, &layer.input_norm, eps, normed);
        }
        backend.matmul(normed, &layer.qkv, layer.qkv_bias.as_ref(), qkv);
        if let Some(weight) = &layer.q_norm {
            backend.head_norm(qkv, shape, 0..shape.heads, weight, eps);
        }
        if let Some(weight) = &layer.k_norm {
            let keys = shape.heads..shape.heads + shape.kv_heads;
            backend.head_norm(qkv, shape, keys, weight, eps);
        }
        backend.rope(qkv, shape, &self.rope, batch.positions);
        backend.attention(cache, number, qkv, shape, batch, attended);
    }

    /// From the attention output to what the MLP adds to the residual stream.
    fn finish_layer(&mut self, backend: &mut B, number: usize) -> Result<(), ModelError> {
        let layer: &Layer<B> = &self.layers[number];
        let Buffers {
            residual,
            delta,
            normed,
            attended,
            gate_up,
            activated,
            ..
        } = &mut self.buffers;
        backend.matmul(attended, &layer.output, layer.output_bias.as_ref(), delta);
        backend.all_reduce(delta)?;
        let eps = self.model.rms_norm_eps;
        backend.add_rms_norm(residual, delta, &layer.post_norm, eps, normed);
        backend.matmul(normed, &layer.gate_up, layer.gate_up_bias.as_ref(), gate_up);
        backend.silu_mul(gate_up, activated);
        backend.matmul(activated, &layer.down, layer.down_bias.as_ref(), delta);
        backend.all_reduce(delta)?;
        Ok(())
    }

    /// The final norm and the head over `rows` rows, in blocks.
    fn logits(
        &mut self,
        backend: &mut B,
        rows: usize,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let vocab = self.model.vocab_size;
        let block_rows = self.limits.logit_block_rows;
        let b = &mut self.buffers;
        let eps = self.model.rms_norm_eps;
        backend.add_rms_norm(&mut b.residual, &b.delta, &self.norm, eps, &mut b.normed);
        for first in (0..rows).step_by(block_rows) {
            let numbers = &b.numbers[first..rows.min(first + block_rows)];
            backend.set_rows(&mut b.logits, numbers.len());
            if numbers.len() == rows {
                backend.matmul(&b.normed, head, None, &mut b.logits);
            } else {
                backend.set_rows(&mut b.head_input, numbers.len());
                backend.gather_rows(&b.normed, numbers, &mut b.head_input);
                backend.matmul(&b.head_input, head, None, &mut b.logits);
            }
            backend.gather_to_host(&b.logits, &self.vocab_widths, &mut b.host_logits)?;
            if self.shard.rank == 0 {
                sink(LogitBlock {
                    first,
                    logits: &b.host_logits,
                    vocab,
                });
            }
        }
        Ok(())
    }
}
