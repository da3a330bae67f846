//! Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434) over a cache of one cell for each token:
//! projections to latents and queries, norms of latents, and the projection back to the residual
//! stream.
//!
//! Ranks split heads. The cell of a token is the same for all heads, so each rank of a DP rank
//! computes it and has it in its cache.

mod tensors;

use lockstep_backend::{
    AttendLatent, AttentionShape, Backend, BackendError, Holds, LatentHeads, LatentShape,
    LatentSpace,
};
use lockstep_types::{KvGroup, LatentAttentionSpec, ModelConfig, RopeConfig};

use crate::{
    Shard,
    blocks::{
        LayerContext, LayerPlace, Linear,
        allocate::Allocate,
        cache::{CachePlace, ModelCache},
        distinct::{distinct, place_of},
        parts::{Convert, Form, Listed, Tensors},
        rope::{rope_of_latent, rope_tables},
    },
};
use tensors::Parts;

/// One rank's heads of one layer's latent attention.
pub(crate) struct LatentAttention<F: Form> {
    /// Place of the layer among the model's caches.
    pub cache: CachePlace,
    /// Number of this rank's heads, and the columns of their parts.
    pub shape: LatentShape,
    /// Index of the layer's rotary table in [`rope_tables`].
    pub rope: usize,
    /// Index of the layer's buffers in the list made from [`LatentVariants::widths`].
    pub buffers: usize,
    /// Epsilon added to the mean square in the norms of latents.
    pub eps: f32,
    /// Projection to the latent of queries, and the weight of its norm; `None` where queries are
    /// made of the input.
    pub query_down: Option<(Linear<F>, F::Vector)>,
    /// Projection to queries: columns of all heads that are not rotated, then those that are.
    pub query: Linear<F>,
    /// Projection to the latent of keys and values, and to the shared key.
    pub cell: Linear<F>,
    /// Weight of the norm of that latent.
    pub cell_norm: F::Vector,
    /// Key matrix of each head, turned around.
    pub keys: Vec<F::Matrix>,
    /// Value matrix of each head.
    pub values: Vec<F::Matrix>,
    /// Projection back to the residual stream. Only the lead of a DP rank holds its bias.
    pub output: Linear<F>,
}

/// Distinct sizes of a model's latent attentions on one rank. Layers of one size share what the
/// lists stand for.
pub(crate) struct LatentVariants {
    /// Groups of layers with equal caches.
    caches: Vec<KvGroup>,
    /// Columns of buffers.
    pub widths: Vec<LatentWidths>,
    /// Rotary tables, as [`rope_tables`] lists them.
    ropes: Vec<(RopeConfig, usize)>,
}

impl LatentVariants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        let widths = model.latent_attentions();
        Self {
            caches: model.kv_groups(),
            widths: distinct(widths.map(|spec| LatentWidths::of(spec, shard))),
            ropes: rope_tables(model),
        }
    }
}

/// Activations of a latent attention, allocated once.
pub(crate) struct LatentBuffers<T> {
    /// Latent of queries, before and behind its norm, `[n, query latent]`.
    down: Option<[T; 2]>,
    /// Queries, `[n, heads·(nope + rotated)]`.
    query: T,
    /// Latent of keys and values, and the shared key, `[n, latent + rotated]`.
    cell: T,
    /// Space for queries times key matrices, `[n, (heads + 1)·(latent + rotated)]`.
    qkv: T,
    /// Space for means of latents, `[n, heads·latent]`.
    means: T,
    /// Attention output, `[n, heads·value]`.
    pub attended: T,
}

/// Columns of a latent attention's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LatentWidths {
    down: Option<usize>,
    query: usize,
    cell: usize,
    qkv: usize,
    means: usize,
    attended: usize,
}

impl LatentWidths {
    /// Returns the widths of an attention on the rank of `shard`.
    fn of(spec: &LatentAttentionSpec, shard: &Shard) -> Self {
        let shape = LatentAttention::shape(spec, shard);
        let absorbed = shape.absorbed();
        Self {
            down: spec.query_latent,
            query: shape.query_width(),
            cell: shape.cell(),
            qkv: absorbed.qkv_width(),
            means: absorbed.out_width(),
            attended: shape.heads * shape.value,
        }
    }
}

impl<T> LatentBuffers<T> {
    /// Allocates buffers of these widths for passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        widths: LatentWidths,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let mut room = |width, holds| device.activations(tokens, width, holds);
        Ok(Self {
            down: match widths.down {
                Some(width) => Some([room(width, Holds::Sum)?, room(width, Holds::Operand)?]),
                None => None,
            },
            query: room(widths.query, Holds::Sum)?,
            cell: room(widths.cell, Holds::Sum)?,
            qkv: room(widths.qkv, Holds::Sum)?,
            means: room(widths.means, Holds::Operand)?,
            attended: room(widths.attended, Holds::Operand)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        let own = [
            &mut self.query,
            &mut self.cell,
            &mut self.qkv,
            &mut self.means,
            &mut self.attended,
        ];
        for tensor in own.into_iter().chain(self.down.iter_mut().flatten()) {
            backend.set_rows(tensor, rows);
        }
    }
}

impl LatentAttention<Listed> {
    /// Lists the tensors of the attention that `spec` describes, in the layer at `place`.
    pub fn listed(
        place: &LayerPlace<'_>,
        spec: &LatentAttentionSpec,
        variants: &LatentVariants,
    ) -> Self {
        let parts = Parts::new(place, spec);
        let heads = parts.heads.clone();
        Self {
            cache: CachePlace::of(&variants.caches, place.number),
            shape: Self::shape(spec, place.shard),
            rope: place_of(&variants.ropes, &rope_of_latent(spec)),
            buffers: place_of(&variants.widths, &LatentWidths::of(spec, place.shard)),
            eps: spec.norm_eps,
            query_down: parts.query_down(),
            query: parts.query(),
            cell: parts.cell(),
            cell_norm: parts.norm(&spec.names.cell_norm, spec.latent),
            keys: heads.clone().map(|head| parts.key(head)).collect(),
            values: heads.map(|head| parts.value(head)).collect(),
            output: parts.output(),
        }
    }

    /// Returns the shape of the heads in `shard`.
    pub fn shape(spec: &LatentAttentionSpec, shard: &Shard) -> LatentShape {
        LatentShape::of(spec, shard.query_heads(spec.heads).len())
    }

    /// Returns the matrices of heads, in `model`; `None` if there are none.
    pub fn heads(&self, model: &ModelConfig) -> Option<LatentHeads> {
        let (keys, values) = self.keys.first().zip(self.values.first())?;
        Some(LatentHeads {
            shape: self.shape,
            keys: keys.shape(model),
            values: values.shape(model),
        })
    }
}

/// Returns the distinct shapes of attention to latents in a model's layers on one rank.
pub(crate) fn latent_shapes(
    model: &ModelConfig,
    shard: &Shard,
) -> impl Iterator<Item = AttentionShape> {
    let specs = model.latent_attentions();
    specs.map(|spec| LatentAttention::shape(spec, shard).absorbed())
}

impl<F: Form> Tensors<F> for LatentAttention<F> {
    type In<T: Form> = LatentAttention<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<LatentAttention<C::To>, C::Error> {
        let query_down = match &self.query_down {
            Some((down, norm)) => Some((down.convert(to)?, to.vector(norm)?)),
            None => None,
        };
        let query = self.query.convert(to)?;
        let cell = self.cell.convert(to)?;
        let cell_norm = to.vector(&self.cell_norm)?;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (key, value) in self.keys.iter().zip(&self.values) {
            keys.push(to.matrix(key)?);
            values.push(to.matrix(value)?);
        }
        Ok(LatentAttention {
            cache: self.cache,
            shape: self.shape,
            rope: self.rope,
            buffers: self.buffers,
            eps: self.eps,
            query_down,
            query,
            cell,
            cell_norm,
            keys,
            values,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> LatentAttention<B> {
    /// Computes attention: reads `input` `[n, inputs]`, and writes the attention output, before
    /// the output projection, to `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on a device without latent attention.
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: &B::Tensor,
        buffers: &mut LatentBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        let LatentBuffers {
            down,
            query,
            cell,
            qkv,
            means,
            attended,
        } = buffers;
        match (&self.query_down, down) {
            (Some((projection, norm)), Some([latent, normed])) => {
                projection.run(backend, input, latent);
                backend.rms_norm(latent, norm, self.eps, normed);
                self.query.run(backend, normed, query);
            }
            _ => self.query.run(backend, input, query),
        }
        self.cell.run(backend, input, cell);
        let op = AttendLatent {
            shape: &self.shape,
            norm: &self.cell_norm,
            eps: self.eps,
            rope: &context.ropes[self.rope],
            keys: &self.keys,
            values: &self.values,
        };
        let space = LatentSpace { qkv, means };
        let CachePlace { cache: at, layer } = self.cache;
        let cache = &mut cache.all()[at];
        backend.attend_latent(cache, layer, query, cell, &op, space, inputs, attended)
    }
}
