//! Attention over a paged cache: fused projections of queries, keys and values, norms of
//! heads, rotary positions, and the projection back to the residual stream.

use std::ops::Range;

use lockstep_backend::{Attend, AttentionShape, Axis, Backend};
use lockstep_types::ModelConfig;

use super::{
    LayerPlace, LayerShape, Linear,
    parts::{Convert, Form, Listed, Tensors, VectorPart},
};
use crate::{CollectiveStep, Shard, Topology, topology::attention_axis};

/// One rank's heads of one layer's attention.
pub(crate) struct Attention<F: Form> {
    /// The layer's place in the cache.
    pub number: usize,
    /// Query rows, then key rows, then value rows.
    pub qkv: Linear<F>,
    /// Over each head of the queries, `[head_dim]`.
    pub q_norm: Option<F::Vector>,
    /// Over each head of the keys, `[head_dim]`.
    pub k_norm: Option<F::Vector>,
    /// Its bias is on the DP rank's first rank alone.
    pub output: Linear<F>,
}

/// Activations of an attention, allocated once.
pub(crate) struct AttentionBuffers<T> {
    /// Queries, keys and values, `[n, (heads + 2·kv_heads)·head_dim]`.
    pub qkv: T,
    /// Attention output, `[n, heads·head_dim]`.
    pub attended: T,
}

impl Attention<Listed> {
    /// The tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        let (dim, prefix) = (model.head_dim, format!("{}.self_attn", place.prefix));
        let (queries, kv) = (model.num_heads * dim, model.num_kv_heads * dim);
        let heads = scaled(&shard.heads, dim);
        let keys: Vec<_> = shard
            .kv_heads
            .iter()
            .map(|head| head * dim..(head + 1) * dim)
            .collect();
        let qkv = [
            ("q_proj", queries, vec![heads.clone()]),
            ("k_proj", kv, keys.clone()),
            ("v_proj", kv, keys),
        ];
        let norm = |name: &str| {
            let name = format!("{prefix}.{name}.weight");
            model.qk_norm.then(|| VectorPart::whole(name, dim))
        };
        Self {
            number: place.number,
            qkv: Linear::of_outputs(&prefix, &qkv, place.inputs, model.qkv_bias),
            q_norm: norm("q_norm"),
            k_norm: norm("k_norm"),
            output: Linear::of_inputs(
                &format!("{prefix}.o_proj"),
                model.hidden_size,
                queries,
                heads,
                model.output_bias && shard.topology.attention.leads(),
            ),
        }
    }

    /// Behind the output projection: the sum over the ranks that heads are split over.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Option<CollectiveStep> {
        let alone = topology.dp_size() > 1 && topology.attention.size == 1;
        (!alone).then(|| CollectiveStep::sum(attention_axis(axis), hidden))
    }

    /// The heads of one rank.
    pub fn shape(model: &ModelConfig, shard: &Shard) -> AttentionShape {
        AttentionShape {
            heads: shard.heads.len(),
            kv_heads: shard.kv_heads.len(),
            head_dim: model.head_dim,
            scale: (model.head_dim as f32).sqrt().recip(),
        }
    }
}

impl<F: Form> Tensors<F> for Attention<F> {
    type In<T: Form> = Attention<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Attention<C::To>, C::Error> {
        Ok(Attention {
            number: self.number,
            qkv: self.qkv.convert(to)?,
            q_norm: to.optional(self.q_norm.as_ref())?,
            k_norm: to.optional(self.k_norm.as_ref())?,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> Attention<B> {
    /// From what the projections read, `[n, inputs]`, to the attention output in `buffers`.
    pub fn run(
        &self,
        backend: &mut B,
        shape: &LayerShape<B>,
        input: &B::Tensor,
        buffers: &mut AttentionBuffers<B::Tensor>,
        cache: &mut B::KvCache,
        inputs: &B::Inputs,
    ) {
        let AttentionBuffers { qkv, attended } = buffers;
        self.qkv.run(backend, input, qkv);
        let op = Attend {
            shape: &shape.attention,
            q_norm: self.q_norm.as_ref(),
            k_norm: self.k_norm.as_ref(),
            eps: shape.eps,
            rope: &shape.rope,
        };
        backend.attend(cache, self.number, qkv, &op, inputs, attended);
    }
}

fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}
