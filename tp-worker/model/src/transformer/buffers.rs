//! Activations of a pass, allocated once.

use lockstep_backend::{Backend, BackendError, Holds, Rows};
use lockstep_types::ModelConfig;

use crate::{
    ForwardLimits, Shard,
    allocate::Allocate,
    layer::{LayerBuffers, LayerSizes, SecondHalf},
};

/// One set of activations, reused by every pass.
pub(crate) struct Buffers<T> {
    pub layer: LayerBuffers<T>,
    /// The rows of the attention output that logits are wanted of.
    pub attended_wanted: T,
    /// Normed rows of one logit block, `[block, hidden]`.
    pub head_input: T,
    /// This rank's columns of one logit block, `[block, vocab part]`.
    pub logits: T,
    /// One logit block on the host of the rank that leads, `[block, vocab]`.
    pub host_logits: Vec<f32>,
}

impl<T> Buffers<T> {
    /// Allocates for `limits`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        shard: &Shard,
        limits: ForwardLimits,
    ) -> Result<Self, BackendError> {
        let (tokens, block) = (limits.max_tokens, limits.logit_block_rows);
        let layer = LayerSizes::new(model, shard, model.hidden_size);
        // A rank alone reads its logits where they are.
        let host = if shard.rank == 0 && shard.size > 1 {
            block * model.vocab_size
        } else {
            0
        };
        Ok(Self {
            layer: LayerBuffers::new(device, &layer, tokens)?,
            attended_wanted: device.activations(
                tokens,
                layer.attention.out_width(),
                Holds::Operand,
            )?,
            head_input: device.activations(block, model.hidden_size, Holds::Operand)?,
            logits: device.activations(block, shard.vocab.len(), Holds::Logits)?,
            host_logits: device.host(host, "a block of logits")?,
        })
    }

    /// Sets the row count of everything that a pass over `tokens` tokens, of
    /// which `wanted` are wanted, writes.
    pub fn set_rows(
        &mut self,
        backend: &mut impl Backend<Tensor = T>,
        tokens: usize,
        wanted: usize,
    ) {
        self.layer.set_rows(backend, tokens);
        backend.set_rows(&mut self.attended_wanted, wanted);
    }

    /// The second half of a layer over the wanted rows alone: what follows the
    /// last attention looks at single tokens. What is added to the residual
    /// stream and the stream itself change places for it. [`Self::set_rows`]
    /// undoes it.
    pub fn narrow<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        inputs: &B::Inputs,
        wanted: usize,
    ) -> SecondHalf<'_, T> {
        let (layer, attended) = (&mut self.layer, &mut self.attended_wanted);
        layer.set_block_rows(backend, wanted);
        let rows = || Rows::Wanted(inputs, 0..wanted);
        backend.gather_rows(&layer.residual, rows(), &mut layer.delta);
        backend.gather_rows(&layer.attention.attended, rows(), attended);
        backend.set_rows(&mut layer.residual, wanted);
        SecondHalf {
            attended,
            residual: &mut layer.delta,
            delta: &mut layer.residual,
            normed: &mut layer.normed,
            gate_up: &mut layer.gate_up,
            activated: &mut layer.activated,
        }
    }
}
