//! Activations of a pass, allocated once.

use lockstep_backend::{BackendError, Holds};
use lockstep_types::{AdapterLimits, ModelConfig};

use super::tail;
use crate::{
    ForwardLimits, Shard,
    blocks::adapted::RowAdapters,
    blocks::allocate::Allocate,
    blocks::{LayerBuffers, Mixer},
};

/// One set of activations, reused by every pass.
pub(crate) struct Buffers<T> {
    pub layer: LayerBuffers<T>,
    /// Buffers of a layer for the wanted tokens alone, over which the [tail](super::tail) runs;
    /// `None` for a model without one.
    pub tail: Option<LayerBuffers<T>>,
    /// Rows of the last mixer's columns whose logits are wanted.
    pub mixed_wanted: T,
    /// Normed rows whose logits are wanted, before they go to all DP ranks. They are used if
    /// the last layer has run over all tokens. `None` with one DP rank.
    pub wanted: Option<T>,
    /// Normed rows of one logit block, `[block, hidden]`.
    pub head_input: T,
    /// This rank's columns of one logit block, `[block, vocab part]`.
    pub logits: T,
    /// All ranks' columns of this rank's rows of one logit block, `[block, vocab]`, and space
    /// to put the columns together. Only a lead that chooses from them has them.
    pub whole: Option<[T; 2]>,
    /// One logit block on the lead's host, `[block, vocab]`.
    pub host_logits: Vec<f32>,
}

impl<T> Buffers<T> {
    /// Allocates buffers for `limits`, and for `adapters`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        shard: &Shard,
        limits: ForwardLimits,
        adapters: AdapterLimits,
    ) -> Result<Self, BackendError> {
        let topology = shard.topology;
        let (tokens, dp_size) = (limits.max_tokens, topology.dp_size());
        let block = limits.logit_block_rows;
        let last = model.layers.last();
        let columns = last.map_or(0, |layer| Mixer::columns(layer, model.hidden_size, shard));
        // A rank alone reads its logits where they are.
        let host = if topology.attention.leads() && topology.world.size > 1 {
            block * model.vocab_size
        } else {
            0
        };
        let chooses = limits.max_commit > 0 && host > 0;
        let mut rows = || device.activations(block, model.vocab_size, Holds::Logits);
        Ok(Self {
            whole: match chooses {
                true => Some([rows()?, rows()?]),
                false => None,
            },
            layer: layer(device, model, shard, tokens, adapters)?,
            tail: tail::most_tokens(model, shard, &limits)
                .map(|most| layer(device, model, shard, most, adapters))
                .transpose()?,
            mixed_wanted: device.activations(tokens, columns, Holds::Operand)?,
            wanted: match dp_size {
                1 => None,
                _ => Some(device.activations(tokens, model.hidden_size, Holds::Operand)?),
            },
            head_input: device.activations(block, model.hidden_size, Holds::Operand)?,
            logits: device.activations(block, shard.vocab.len(), Holds::Logits)?,
            host_logits: device.host(host, "a block of logits")?,
        })
    }
}

/// Allocates buffers of layers, with room for the places of adapters if there may be some.
fn layer<T>(
    device: &mut impl Allocate<Tensor = T>,
    model: &ModelConfig,
    shard: &Shard,
    tokens: usize,
    adapters: AdapterLimits,
) -> Result<LayerBuffers<T>, BackendError> {
    let mut buffers = LayerBuffers::new(device, model, shard, tokens)?;
    if adapters.places > 0 {
        let places = RowAdapters::new(device, tokens, shard.topology.dp_size())?;
        buffers.adapters = Some(places);
    }
    Ok(buffers)
}
