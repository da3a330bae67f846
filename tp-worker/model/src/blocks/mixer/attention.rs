//! Attention over a paged cache: fused projections of queries, keys and values, norms of
//! heads, rotary positions, and the projection back to the residual stream.

use std::ops::Range;

use lockstep_backend::{Attend, AttentionShape, Axis, Backend, BackendError, Holds};
use lockstep_types::{AttentionSpec, KvGroup, ModelConfig, RopeConfig};

use crate::{
    CollectiveStep, Shard, Topology,
    blocks::{
        LayerContext, LayerPlace, Linear,
        allocate::Allocate,
        cache::{CachePlace, ModelCache},
        distinct::{distinct, place_of},
        linear::Fused,
        parts::{Convert, Form, Listed, Tensors, VectorPart},
        rope::{rope_of, rope_tables},
    },
    split::topology::attention_axis,
};

/// One rank's heads of one layer's attention.
pub(crate) struct Attention<F: Form> {
    /// Place of the layer among the model's caches.
    pub cache: CachePlace,
    /// Number and width of this rank's heads.
    pub shape: AttentionShape,
    /// Index of the layer's rotary table in [`rope_tables`].
    pub rope: usize,
    /// Index of the layer's buffers in the list made from [`AttentionVariants::widths`].
    pub buffers: usize,
    /// Epsilon added to the mean square in the norms of heads.
    pub eps: f32,
    /// Fused projection: query rows, then key rows, then value rows.
    pub qkv: Linear<F>,
    /// Norm weights over each head of the queries, `[head_dim]`.
    pub q_norm: Option<F::Vector>,
    /// Norm weights over each head of the keys, `[head_dim]`.
    pub k_norm: Option<F::Vector>,
    /// Projection back to the residual stream. Only the lead of a DP rank holds its bias.
    pub output: Linear<F>,
}

/// Distinct sizes of a model's attentions on one rank. Layers of one size share what the lists
/// stand for.
pub(crate) struct AttentionVariants {
    /// Groups of layers with equal caches.
    caches: Vec<KvGroup>,
    /// Columns of buffers.
    pub widths: Vec<AttentionWidths>,
    /// Rotary tables, as [`rope_tables`] lists them.
    ropes: Vec<(RopeConfig, usize)>,
}

impl AttentionVariants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        Self {
            caches: model.kv_groups(),
            widths: attention_widths(model, shard),
            ropes: rope_tables(model),
        }
    }
}

/// Activations of an attention, allocated once.
pub(crate) struct AttentionBuffers<T> {
    /// Queries, keys and values, `[n, (heads + 2·kv_heads)·head_dim]`.
    pub qkv: T,
    /// Attention output, `[n, heads·head_dim]`.
    pub attended: T,
}

/// Columns of an attention's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionWidths {
    /// Columns of queries, keys and values.
    qkv: usize,
    /// Columns of the attention output.
    attended: usize,
}

impl AttentionWidths {
    /// Returns the widths for heads of `shape`.
    fn of(shape: &AttentionShape) -> Self {
        Self {
            qkv: shape.qkv_width(),
            attended: shape.out_width(),
        }
    }
}

impl<T> AttentionBuffers<T> {
    /// Allocates buffers of these widths for passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        widths: AttentionWidths,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            qkv: device.activations(tokens, widths.qkv, Holds::Sum)?,
            attended: device.activations(tokens, widths.attended, Holds::Operand)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.qkv, rows);
        backend.set_rows(&mut self.attended, rows);
    }
}

impl Attention<Listed> {
    /// Lists the tensors of the attention that `attention` describes, in the layer at `place`.
    pub fn listed(
        place: &LayerPlace<'_>,
        attention: &AttentionSpec,
        variants: &AttentionVariants,
    ) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        // Taken apart without `..`, so that a new field does not compile until it is read.
        let &AttentionSpec {
            heads: query_heads,
            kv_heads,
            head_dim: dim,
            scale: _,
            window: _,
            rope: _,
            qk_norm,
            qkv_bias,
            output_bias,
            ref names,
        } = attention;
        let heads = shard.heads(attention);
        let (queries, kv) = (query_heads * dim, kv_heads * dim);
        let keys = heads.kv.iter().map(|head| head * dim..(head + 1) * dim);
        let keys: Vec<_> = keys.collect();
        let heads = scaled(&heads.queries, dim);
        let shape = Self::shape(attention, shard);
        let qkv = [
            (&names.query, queries, vec![heads.clone()]),
            (&names.key, kv, keys.clone()),
            (&names.value, kv, keys),
        ];
        let qkv = qkv.map(|(name, rows, taken)| Fused {
            name: place.name(name),
            rows,
            taken,
        });
        let norm = |name: &str| {
            let name = format!("{}.weight", place.name(name));
            qk_norm.then(|| VectorPart::whole(name, dim))
        };
        Self {
            cache: CachePlace::of(&variants.caches, place.number),
            shape,
            rope: place_of(&variants.ropes, &rope_of(attention)),
            buffers: place_of(&variants.widths, &AttentionWidths::of(&shape)),
            eps: place.spec().rms_norm_eps,
            qkv: Linear::of_outputs(&qkv, place.inputs, qkv_bias),
            q_norm: norm(&names.query_norm),
            k_norm: norm(&names.key_norm),
            output: Linear::of_inputs(
                &place.name(&names.output),
                model.hidden_size,
                queries,
                heads,
                output_bias && shard.topology.attention.leads(),
            ),
        }
    }

    /// Returns the sum behind the output projection, over the ranks that heads are split
    /// over. `None` with several DP ranks of one rank each.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Option<CollectiveStep> {
        let alone = topology.dp_size() > 1 && topology.attention.size == 1;
        (!alone).then(|| CollectiveStep::sum(attention_axis(axis), hidden))
    }

    /// Returns the attention shape of the heads in `shard`.
    pub fn shape(attention: &AttentionSpec, shard: &Shard) -> AttentionShape {
        let heads = shard.heads(attention);
        AttentionShape {
            window: attention.window,
            ..AttentionShape::dense(
                heads.queries.len(),
                heads.kv.len(),
                attention.head_dim,
                attention.scale,
            )
        }
    }
}

/// Returns the distinct attention shapes of a model's layers on one rank.
pub(crate) fn attention_shapes(model: &ModelConfig, shard: &Shard) -> Vec<AttentionShape> {
    let shapes = model.attentions();
    distinct(shapes.map(|attention| Attention::shape(attention, shard)))
}

/// Returns the distinct widths of the buffers of a model's layers on one rank. Layers with and
/// without windows share buffers.
pub(crate) fn attention_widths(model: &ModelConfig, shard: &Shard) -> Vec<AttentionWidths> {
    let shapes = model.attentions();
    distinct(shapes.map(|attention| AttentionWidths::of(&Attention::shape(attention, shard))))
}

impl<F: Form> Tensors<F> for Attention<F> {
    type In<T: Form> = Attention<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Attention<C::To>, C::Error> {
        Ok(Attention {
            cache: self.cache,
            shape: self.shape,
            rope: self.rope,
            buffers: self.buffers,
            eps: self.eps,
            qkv: self.qkv.convert(to)?,
            q_norm: to.optional(self.q_norm.as_ref())?,
            k_norm: to.optional(self.k_norm.as_ref())?,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> Attention<B> {
    /// Computes attention: reads `input` `[n, inputs]`, and writes the attention output,
    /// before the output projection, to `buffers`.
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: &B::Tensor,
        buffers: &mut AttentionBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) {
        let AttentionBuffers { qkv, attended } = buffers;
        let op = Attend {
            shape: &self.shape,
            q_norm: self.q_norm.as_ref(),
            k_norm: self.k_norm.as_ref(),
            eps: self.eps,
            rope: &context.ropes[self.rope],
        };
        let CachePlace { cache: at, layer } = self.cache;
        let cache = &mut cache.all()[at];
        let qkv_weights = self.qkv.operand();
        backend.matmul_attend(input, qkv_weights, cache, layer, qkv, &op, inputs, attended);
    }
}

fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}
