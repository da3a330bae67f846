//! Attention over a paged cache: fused projections of queries, keys and values, norms of
//! heads, rotary positions, and the projection back to the residual stream.

mod rows;
mod together;

use std::ops::Range;

use lockstep_backend::{Attend, AttentionShape, Backend, BackendError, Holds, WholeNorms};
use lockstep_types::{AttentionSpec, KvGroup, ModelConfig, QkNorm, RopeConfig};

use crate::{
    Shard,
    blocks::{
        LayerContext, LayerPlace, Linear,
        adapted::Input,
        allocate::Allocate,
        cache::{CachePlace, ModelCache},
        distinct::{distinct, place_of},
        linear::Fused,
        parts::{Convert, Form, Listed, Tensors, VectorPart},
        rope::{rope_of, rope_tables},
    },
};
use rows::{keys_and_values, pairs, query_rows, scaled, tensor_rows, value_norm};
pub(crate) use together::Together;

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
    /// Fused projection: query rows, then key rows, then value rows; query rows alone where the
    /// layer reads the keys and values of another.
    pub qkv: Linear<F>,
    /// Projection to gates of the output, `[heads·head_dim]`; `None` where it has none.
    pub gate: Option<Linear<F>>,
    /// Norm weights of the queries: `[head_dim]` for each head by itself, or of all heads.
    pub q_norm: Option<F::Vector>,
    /// Norm weights of the keys, likewise.
    pub k_norm: Option<F::Vector>,
    /// Norm weights of the values, `[head_dim]` ones; `None` where they are not normed.
    pub v_norm: Option<F::Vector>,
    /// Sinks of this rank's query heads.
    pub sinks: Option<F::Vector>,
    /// Sums behind norms over all heads together; `None` where each head has its own.
    pub together: Option<Together>,
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
    /// Queries, keys and values, `[n, (heads + 2·kv_heads)·head_dim]`, or queries alone.
    pub qkv: T,
    /// Attention output, `[n, heads·head_dim]`.
    pub attended: T,
    /// Gates of the output, `[n, heads·head_dim]`; `None` where it has none.
    pub gate: Option<T>,
    /// Sums of squares of queries and of keys, `[n, 2]`; `None` where no norm needs them.
    pub squares: Option<T>,
}

/// Columns of an attention's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionWidths {
    /// Columns of queries, keys and values.
    qkv: usize,
    /// Columns of the attention output.
    attended: usize,
    /// True if norms take all heads together.
    together: bool,
    /// True if the output has gates.
    gated: bool,
}

impl AttentionWidths {
    /// Returns the widths of an attention on the rank of `shard`.
    fn of(attention: &AttentionSpec, shard: &Shard) -> Self {
        let shape = Attention::shape(attention, shard);
        Self {
            qkv: shape.qkv_width(),
            attended: shape.out_width(),
            together: attention.qk_norm == QkNorm::Whole,
            gated: attention.output_gate,
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
            gate: match widths.gated {
                true => Some(device.activations(tokens, widths.attended, Holds::Sum)?),
                false => None,
            },
            squares: match widths.together {
                true => Some(device.activations(tokens, 2, Holds::Sum)?),
                false => None,
            },
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.qkv, rows);
        backend.set_rows(&mut self.attended, rows);
        for optional in [&mut self.gate, &mut self.squares].into_iter().flatten() {
            backend.set_rows(optional, rows);
        }
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
            softcap: _,
            window: _,
            ref rope,
            qk_norm,
            values: _,
            kv_of,
            qkv_bias,
            output_bias,
            sinks,
            output_gate,
            ref names,
        } = attention;
        let heads = shard.heads(attention);
        let (queries, kv) = (query_heads * dim, kv_heads * dim);
        let of_head = |head: usize| head * dim..(head + 1) * dim;
        let paired = |head: usize| pairs(rope.rotated.unwrap_or(dim), of_head(head));
        let values = heads.kv.iter().map(|head| of_head(*head)).collect();
        let keys: Vec<_> = heads.kv.iter().flat_map(|head| paired(*head)).collect();
        let (rotated, gates) = query_rows(attention, &heads.queries);
        let query = |rows| Fused::of(place.name(&names.query), tensor_rows(attention), rows);
        let gate = [query(gates)];
        let own = heads.queries.clone();
        let sinks = sinks.then(|| VectorPart::part(place.name(&names.sinks), query_heads, own));
        let heads = scaled(&heads.queries, dim);
        let norm = |name: &str, width: usize, taken: &[Range<usize>]| {
            let (len, taken) = match qk_norm {
                QkNorm::None => return None,
                QkNorm::PerHead => (dim, paired(0)),
                QkNorm::Whole => (width, taken.to_vec()),
            };
            Some(VectorPart::norm(&place.name(name), model.norm, len, taken))
        };
        let q_norm = norm(&names.query_norm, queries, &rotated);
        let k_norm = norm(&names.key_norm, kv, &keys).filter(|_| kv_of.is_none());
        let mut qkv = vec![query(rotated)];
        qkv.extend(keys_and_values(place, attention, keys, values));
        Self {
            cache: CachePlace::of(&variants.caches, kv_of.unwrap_or(place.number)),
            shape: Self::shape(attention, shard),
            rope: place_of(&variants.ropes, &rope_of(attention)),
            buffers: place_of(&variants.widths, &AttentionWidths::of(attention, shard)),
            eps: place.spec().rms_norm_eps,
            qkv: Linear::of_outputs(&qkv, place.inputs, qkv_bias),
            gate: output_gate.then(|| Linear::of_outputs(&gate, place.inputs, qkv_bias)),
            q_norm,
            k_norm,
            v_norm: value_norm(attention),
            sinks,
            together: Together::of(attention, shard),
            output: Linear::of_inputs(
                &place.name(&names.output),
                model.hidden_size,
                queries,
                heads,
                output_bias && shard.topology.attention.leads(),
            ),
        }
    }

    /// Returns the number of sums of squares that ranks add up before norms over all heads:
    /// those of queries, and of keys.
    pub fn squares(attention: &AttentionSpec) -> Option<usize> {
        (attention.qk_norm == QkNorm::Whole).then_some(2)
    }

    /// Returns the attention shape of the heads in `shard`.
    pub fn shape(attention: &AttentionSpec, shard: &Shard) -> AttentionShape {
        let heads = shard.heads(attention);
        AttentionShape {
            window: attention.window,
            softcap: attention.softcap,
            sinks: attention.sinks,
            reads_only: attention.kv_of.is_some(),
            ..AttentionShape::dense(
                heads.queries.len(),
                heads.kv.len(),
                attention.head_dim,
                attention.scale,
            )
        }
    }
}

/// Returns the distinct widths of the buffers of a model's layers on one rank. Layers with and
/// without windows share buffers.
pub(crate) fn attention_widths(model: &ModelConfig, shard: &Shard) -> Vec<AttentionWidths> {
    let all = model.attentions();
    distinct(all.map(|attention| AttentionWidths::of(attention, shard)))
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
            gate: self.gate.convert(to)?,
            q_norm: to.optional(self.q_norm.as_ref())?,
            k_norm: to.optional(self.k_norm.as_ref())?,
            v_norm: to.optional(self.v_norm.as_ref())?,
            sinks: to.optional(self.sinks.as_ref())?,
            together: self.together,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> Attention<B> {
    /// Computes attention: reads `input`, `[n, inputs]`, and writes the attention output,
    /// before the output projection, to `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] on a device that has no output
    /// gates.
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: Input<'_, B::Tensor>,
        buffers: &mut AttentionBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        let AttentionBuffers {
            qkv,
            attended,
            gate: gates,
            squares,
        } = buffers;
        let together = self.together.zip(squares.as_mut());
        let each = together.is_none();
        let op = Attend {
            shape: &self.shape,
            q_norm: self.q_norm.as_ref().filter(|_| each),
            k_norm: self.k_norm.as_ref().filter(|_| each),
            v_norm: self.v_norm.as_ref(),
            eps: self.eps,
            rope: &context.ropes[self.rope],
            sinks: self.sinks.as_ref(),
            next: Some(self.output.operand().weight),
        };
        let CachePlace { cache: at, layer } = self.cache;
        let cache = &mut cache.all()[at];
        if together.is_none() && input.places.is_none() {
            let (rows, w) = (input.rows, self.qkv.operand());
            backend.matmul_attend(rows, w, cache, layer, qkv, &op, inputs, attended);
        } else {
            self.qkv.run_adapted(backend, context, input, qkv)?;
            if let Some((together, squares)) = together {
                self.norm_together(backend, context, together, qkv, squares)?;
            }
            backend.attend(cache, layer, qkv, &op, inputs, attended);
        }
        self.gate_output(backend, context, input, gates, attended)
    }

    /// Multiplies the output by its gates, if it has some.
    fn gate_output(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: Input<'_, B::Tensor>,
        gates: &mut Option<B::Tensor>,
        attended: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        match self.gate.as_ref().zip(gates.as_mut()) {
            None => Ok(()),
            Some((gate, gates)) => {
                gate.run_adapted(backend, context, input, gates)?;
                backend.sigmoid_gate(gates, attended)
            }
        }
    }

    /// Norms all query heads of `qkv` together, and all key heads, over all ranks.
    fn norm_together(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        Together { counted, widths }: Together,
        qkv: &mut B::Tensor,
        squares: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        let (Some(queries), Some(keys)) = (&self.q_norm, &self.k_norm) else {
            return Ok(());
        };
        backend.square_sums(qkv, &self.shape, counted, squares);
        backend.all_reduce(context.attention_axis, squares)?;
        let norms = WholeNorms {
            queries,
            keys,
            widths,
            eps: self.eps,
        };
        backend.whole_norm(qkv, &self.shape, squares, &norms);
        Ok(())
    }
}
