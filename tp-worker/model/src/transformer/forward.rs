//! The ragged extend.

use lockstep_backend::{Backend, BackendError, Batch, Rows, WorldRows};

use super::{LogitBlock, Transformer};
use crate::ModelError;

/// What the host's part of a pass depends on.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// New tokens.
    tokens: usize,
    /// Those of them whose logits are wanted.
    wanted: usize,
}

impl<B: Backend> Transformer<B> {
    /// Runs `batch`: writes its keys and values into `cache` and hands the
    /// logits of `batch.logit_tokens` to `sink`, block by block in order, on
    /// the rank that leads alone. All ranks of its axis must call it with the
    /// same batch, and in every call with the same cache. `world` is `None`.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`] before anything ran when the batch exceeds the
    /// limits; [`ModelError::Backend`] when the device or a collective fails:
    /// nothing is kept of the pass then, and what it wrote of the cache is
    /// unspecified.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        world: Option<&WorldRows>,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        if world.is_some() {
            let why = "passes of several DP ranks are not run: give --dp-size 1";
            return Err(BackendError::Unsupported(why.to_owned()).into());
        }
        self.limits.check(batch)?;
        let size = Size {
            tokens: batch.tokens.len(),
            wanted: batch.logit_tokens.len(),
        };
        if let Some(capture) = &mut self.capture {
            capture.begin(backend, size.tokens);
        }
        if size.tokens == 0 {
            return Ok(());
        }
        let done = self.run_whole(backend, cache, batch, size, sink);
        // What it has kept so far is no pass's.
        if let (Err(_), Some(capture)) = (&done, &mut self.capture) {
            capture.begin(backend, 0);
        }
        done
    }

    /// [`Self::forward`] of a batch that has tokens, within the limits.
    fn run_whole(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        size: Size,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        backend.stage(batch, &mut self.inputs)?;
        self.buffers.layer.set_rows(backend, size.tokens);
        let mut passes = std::mem::take(&mut self.passes);
        let model = &mut *self;
        let mut work = |backend: &mut B| model.run(backend, cache, size);
        // Where only some logits are wanted, the last layer's width follows them.
        let done = match size.wanted == size.tokens {
            true => backend.pass(&mut passes, batch.key(), &mut work),
            false => work(backend),
        };
        self.passes = passes;
        done?;
        self.logits(backend, size, sink)
    }

    /// Embedding and layers, over the batch that is staged.
    fn run(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        size: Size,
    ) -> Result<(), BackendError> {
        let b = &mut self.buffers.layer;
        let (first, eps) = (self.shard.vocab.start as u32, self.model.rms_norm_eps);
        backend.embed(&self.embedding, first, &self.inputs, &mut b.residual);
        backend.all_reduce(self.shape.axis, &mut b.residual)?;
        let norm = self.input_norms.first().unwrap_or(&self.norm);
        backend.rms_norm(&b.residual, norm, eps, &mut b.normed);
        for number in 0..self.layers.len() {
            self.layer(backend, cache, number, size)?;
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
        size: Size,
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
        if !narrow || size.wanted == size.tokens {
            let all = b.layer.second_half();
            return layer.finish(backend, shape, all, next_norm);
        }
        if size.wanted > 0 {
            let attended = &mut b.attended_wanted;
            let wanted = b.layer.narrow(backend, inputs, size.wanted, attended);
            layer.finish(backend, shape, wanted, next_norm)?;
            b.layer.set_rows(backend, size.tokens);
        }
        Ok(())
    }

    /// The head over the wanted rows, in blocks.
    fn logits(
        &mut self,
        backend: &mut B,
        size: Size,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        let wide = self.keeps_last_hidden();
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let vocab = self.model.vocab_size;
        let (axis, block_rows) = (self.shape.axis, self.limits.logit_block_rows);
        let b = &mut self.buffers;
        // The wanted rows are among those of all tokens, or all that there are.
        let normed = if wide { size.tokens } else { size.wanted };
        backend.set_rows(&mut b.layer.normed, normed);
        for first in (0..size.wanted).step_by(block_rows) {
            let block = first..size.wanted.min(first + block_rows);
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
