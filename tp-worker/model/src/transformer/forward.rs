//! The ragged extend.

use lockstep_backend::{Backend, Batch, Linear, RmsNorm};

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
        let (b, eps) = (&mut self.buffers, self.model.rms_norm_eps);
        backend.embed(&self.embedding, first, batch.tokens, &mut b.residual);
        backend.all_reduce(&mut b.residual)?;
        let norm = self.layers.first().map_or(&self.norm, |l| &l.input_norm);
        backend.rms_norm(&b.residual, norm, eps, &mut b.normed);
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

    /// From the normed residual stream to the attention output of layer `number`.
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
            normed,
            qkv,
            attended,
            ..
        } = &mut self.buffers;
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

    /// From the attention output to the residual stream as the next layer, or
    /// the head, wants it normed.
    fn finish_layer(&mut self, backend: &mut B, number: usize) -> Result<(), ModelError> {
        let layer: &Layer<B> = &self.layers[number];
        let next = self.layers.get(number + 1);
        let next_norm = next.map_or(&self.norm, |next| &next.input_norm);
        let eps = self.model.rms_norm_eps;
        let norm = |weight| RmsNorm { weight, eps };
        let Buffers {
            residual,
            delta,
            normed,
            attended,
            gate_up,
            activated,
            ..
        } = &mut self.buffers;
        let output = Linear {
            weight: &layer.output,
            bias: layer.output_bias.as_ref(),
        };
        let post = norm(&layer.post_norm);
        backend.matmul_add_rms_norm(attended, output, residual, delta, post, normed)?;
        backend.matmul(normed, &layer.gate_up, layer.gate_up_bias.as_ref(), gate_up);
        backend.silu_mul(gate_up, activated);
        let down = Linear {
            weight: &layer.down,
            bias: layer.down_bias.as_ref(),
        };
        let next = norm(next_norm);
        backend.matmul_add_rms_norm(activated, down, residual, delta, next, normed)?;
        Ok(())
    }

    /// The head over `rows` normed rows, in blocks.
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
            let logits =
                backend.gather_to_host(&b.logits, &self.vocab_widths, &mut b.host_logits)?;
            if self.shard.rank == 0 {
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
