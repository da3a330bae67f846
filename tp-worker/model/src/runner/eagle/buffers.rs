//! Hidden states and activations of a head, allocated once.

use lockstep_backend::{Backend, BackendError, Holds};
use lockstep_types::ModelConfig;

use crate::{
    ForwardLimits, Shard,
    blocks::allocate::Allocate,
    blocks::{LayerBuffers, Mixer, Norm},
    models::eagle::FeatureNorms,
};

/// Sizes that [`Buffers`] are allocated for.
pub(crate) struct Sizes {
    /// Width of the target's captured features.
    pub features: usize,
    /// True if they are normed side by side.
    pub joined_norm: bool,
    /// Number of rows of the output head.
    pub vocab: usize,
    /// Number of layers that draft in turn.
    pub layers: usize,
    /// Number of slots.
    pub requests: usize,
    pub limits: ForwardLimits,
}

/// One set of tensors, reused by every pass.
pub(crate) struct Buffers<T> {
    /// Activations of the layer. Between passes, the residual stream holds the outputs of the
    /// last pass.
    pub layer: LayerBuffers<T>,
    /// Rows of the mixer's columns that become roots, `[requests, columns]`.
    pub mixed_wanted: T,
    /// Hidden inputs of the next pass, `[n, hidden]`.
    pub hidden: T,
    /// Rows of the target's features, `[n, features]`.
    pub features: T,
    /// Features before the norm of all of them side by side, `[n, features]`; no rows if there is
    /// none.
    pub raw_features: T,
    /// Embedded tokens, `[n, hidden]`. Before the pass, features of one layer on their way to
    /// their norm.
    pub embedded: T,
    /// Embedding and hidden state side by side, `[n, 2·hidden]`.
    pub joined: T,
    /// Root of every slot, `[requests, hidden]`, for each layer whose outputs are read: all but
    /// the last of several.
    pub roots: Vec<T>,
    /// First output of every tree that the device drafts, `[requests, hidden]`. The children
    /// of the tree's root go on from it.
    pub tree_roots: T,
    /// Hidden states whose logits are wanted, `[block, hidden]`.
    pub head_input: T,
    /// `head_input` as the output head reads it: normed by EAGLE-3.
    pub head_normed: T,
    /// Logits of one block, `[block, vocab]`.
    pub logits: T,
    /// Logits of one block on the host, where the device's memory can't be read.
    pub host_logits: Vec<f32>,
    /// Collected logits of more states than a block has rows.
    pub collected: Vec<f32>,
}

impl<T> Buffers<T> {
    /// Allocates buffers for `sizes`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        shard: &Shard,
        sizes: &Sizes,
    ) -> Result<Self, BackendError> {
        let (tokens, block) = (sizes.limits.max_tokens, sizes.limits.logit_block_rows);
        let hidden = model.hidden_size;
        let last = model.layers.last();
        let columns = last.map_or(0, |layer| Mixer::columns(layer, model.hidden_size, shard));
        // Room for one state of every slot, as chains need it, if that is more than a block.
        // Trees may make it grow once.
        let collected = match sizes.requests > block {
            true => sizes.requests.saturating_mul(sizes.vocab),
            false => 0,
        };
        let raw = if sizes.joined_norm { tokens } else { 0 };
        let trees = match sizes.limits.tree_nodes {
            0 => 0,
            _ => sizes.requests,
        };
        Ok(Self {
            layer: LayerBuffers::new(device, model, shard, tokens)?,
            mixed_wanted: device.activations(sizes.requests, columns, Holds::Operand)?,
            hidden: device.activations(tokens, hidden, Holds::Sum)?,
            features: device.activations(tokens, sizes.features, Holds::Operand)?,
            raw_features: device.activations(raw, sizes.features, Holds::Sum)?,
            embedded: device.activations(tokens, hidden, Holds::Sum)?,
            joined: device.activations(tokens, 2 * hidden, Holds::Operand)?,
            roots: (0..sizes.layers.saturating_sub(1).max(1))
                .map(|_| device.activations(sizes.requests, hidden, Holds::Sum))
                .collect::<Result<_, _>>()?,
            tree_roots: device.activations(trees, hidden, Holds::Sum)?,
            head_input: device.activations(block, hidden, Holds::Sum)?,
            head_normed: device.activations(block, hidden, Holds::Operand)?,
            logits: device.activations(block, sizes.vocab, Holds::Logits)?,
            host_logits: Vec::new(),
            collected: device.host(collected, "draft logits")?,
        })
    }

    /// Returns the buffer that takes rows of the target's features, for `rows` of them.
    pub fn features_for<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        norms: &FeatureNorms<B>,
        rows: usize,
    ) -> &mut T {
        backend.set_rows(&mut self.features, rows);
        match norms.joined {
            None => &mut self.features,
            Some(_) => {
                backend.set_rows(&mut self.raw_features, rows);
                &mut self.raw_features
            }
        }
    }

    /// Norms the features in the buffer that [`Self::features_for`] returned, of `rows` tokens.
    pub fn norm_features<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        norms: &FeatureNorms<B>,
        (rows, width): (usize, usize),
    ) {
        if let Some(norm) = &norms.joined {
            norm.run(backend, &self.raw_features, &mut self.features);
        }
        if norms.each.is_empty() {
            return;
        }
        let (one, normed) = (&mut self.embedded, &mut self.layer.normed);
        backend.set_rows(one, rows);
        backend.set_rows(normed, rows);
        for (number, norm) in norms.each.iter().enumerate() {
            backend.take_columns(&self.features, number * width, one);
            norm.run(backend, one, normed);
            backend.place_columns(normed, &mut self.features, number * width);
        }
    }

    /// Joins embedding and hidden state side by side, `width` columns each, each through its norm.
    pub fn join_normed<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        embedding_norm: &Norm<B>,
        hidden_norm: &Norm<B>,
        width: usize,
    ) {
        let normed = &mut self.layer.normed;
        embedding_norm.run(backend, &self.embedded, normed);
        backend.place_columns(normed, &mut self.joined, 0);
        hidden_norm.run(backend, &self.hidden, normed);
        backend.place_columns(normed, &mut self.joined, width);
    }

    /// Sets the row count of all buffers that a pass over `rows` tokens writes.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        self.layer.set_rows(backend, rows, rows);
        backend.set_rows(&mut self.embedded, rows);
        backend.set_rows(&mut self.joined, rows);
    }
}
