//! Gated DeltaNet: fused projections, the recurrence over a state of each text, and the projection
//! back to the residual stream.

use std::ops::Range;

use lockstep_backend::{
    Backend, BackendError, DeltaOperands, DeltaShape, GatedDelta as Weights, Holds,
};
use lockstep_types::{GatedDeltaInputs, GatedDeltaSpec, NormKind};

use crate::{
    Place, Shard,
    blocks::{
        LayerPlace, Linear,
        allocate::Allocate,
        cache::ModelCache,
        distinct::place_of,
        linear::Fused,
        parts::{Convert, Form, Listed, Tensors, VectorPart},
        recurrent::{StatePlace, convolution_part, delta_shape, moved, scaled},
    },
};

/// One rank's heads of one layer's Gated DeltaNet.
pub(crate) struct GatedDelta<F: Form> {
    /// Place of the layer among the model's states.
    pub states: StatePlace,
    /// Number and width of this rank's heads.
    pub shape: DeltaShape,
    /// Index of the layer's buffers, one for each of the model's distinct shapes.
    pub buffers: usize,
    /// Epsilon added to the mean square in the norm of heads.
    pub eps: f32,
    /// Fused projection: queries, keys, values, then gates of the output.
    pub inputs: Linear<F>,
    /// Fused projection: strengths of the update, then decays. Checkpoints keep it in floats.
    pub gates: Linear<F>,
    /// Taps of the convolution, the oldest first: for each the factors of all channels.
    pub convolution: F::Vector,
    /// Logarithms of the decays of this rank's value heads.
    pub a_log: F::Vector,
    /// Biases of these decays.
    pub dt_bias: F::Vector,
    /// Weights of the norm of each head.
    pub norm: F::Vector,
    /// Projection back to the residual stream.
    pub output: Linear<F>,
}

/// Activations of a Gated DeltaNet, allocated once.
pub(crate) struct GatedDeltaBuffers<T> {
    /// Queries, keys, values and gates, `[n, channels + value width]`.
    pub projected: T,
    /// Strengths and decays, `[n, 2·value_heads]`.
    pub gates: T,
    /// Queries, keys and values behind the convolution, `[n, channels]`.
    pub convolved: T,
    /// Output of the heads, `[n, value width]`.
    pub mixed: T,
}

impl<T> GatedDeltaBuffers<T> {
    /// Allocates buffers for heads of `shape` and passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        shape: DeltaShape,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let (channels, values) = (shape.channels(), shape.value_width());
        Ok(Self {
            projected: device.activations(tokens, channels + values, Holds::Sum)?,
            gates: device.activations(tokens, 2 * shape.value_heads, Holds::Sum)?,
            convolved: device.activations(tokens, channels, Holds::Sum)?,
            mixed: device.activations(tokens, values, Holds::Operand)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for buffer in [
            &mut self.projected,
            &mut self.gates,
            &mut self.convolved,
            &mut self.mixed,
        ] {
            backend.set_rows(buffer, rows);
        }
    }
}

/// Rows of the projections that a rank takes, in the order of [`GatedDelta::inputs`] and of
/// [`GatedDelta::gates`].
struct Taken<'a> {
    spec: &'a GatedDeltaSpec,
    /// Key heads of the rank.
    keys: Range<usize>,
    /// Value heads for each key head.
    each: usize,
}

impl Taken<'_> {
    /// Value heads of the rank.
    fn values(&self) -> Range<usize> {
        scaled(&self.keys, self.each)
    }

    /// Rows of a tensor with all queries, then all keys, then all values. They are the channels of
    /// the convolution too.
    fn channels(&self) -> Vec<Range<usize>> {
        let spec = self.spec;
        let width = spec.key_heads * spec.key_dim;
        let keys = scaled(&self.keys, spec.key_dim);
        let values = scaled(&self.values(), spec.value_dim);
        vec![keys.clone(), moved(&keys, width), moved(&values, 2 * width)]
    }

    /// Rows of a tensor with the parts of each key head in turn, which have `widths` rows: first
    /// those of the first part of all heads.
    fn by_head(&self, widths: &[usize]) -> Vec<Range<usize>> {
        let all: usize = widths.iter().sum();
        let mut before = 0;
        let parts = widths.iter().map(|width| {
            before += width;
            before - width..before
        });
        let parts: Vec<_> = parts.collect();
        let of_part = |part: &Range<usize>| {
            let part = part.clone();
            let heads = self.keys.clone();
            heads.map(move |head| moved(&part, head * all))
        };
        parts.iter().flat_map(of_part).collect()
    }

    /// Lists the fused projections of inputs and of gates, in the layer at `place`.
    fn projections(&self, place: &LayerPlace<'_>) -> [Linear<Listed>; 2] {
        let spec = self.spec;
        let (values, dim) = (spec.value_heads, spec.value_dim);
        let wide = values * dim;
        let (inputs, gates) = match &spec.names.inputs {
            GatedDeltaInputs::Apart { qkv, z, b, a } => {
                let one = |name: &str, rows, taken| Fused::of(place.name(name), rows, taken);
                let heads = || vec![self.values()];
                let inputs = vec![
                    one(qkv, spec.channels(1), self.channels()),
                    one(z, wide, vec![scaled(&self.values(), dim)]),
                ];
                (
                    inputs,
                    vec![one(b, values, heads()), one(a, values, heads())],
                )
            }
            GatedDeltaInputs::ByKeyHead { qkvz, ba } => {
                let (keys, each) = (spec.key_dim, self.each);
                let parts = self.by_head(&[keys, keys, each * dim, each * dim]);
                let inputs = Fused::of(place.name(qkvz), spec.channels(1) + wide, parts);
                let gates = Fused::of(place.name(ba), 2 * values, self.by_head(&[each, each]));
                (vec![inputs], vec![gates])
            }
        };
        [inputs, gates].map(|parts| Linear::of_outputs(&parts, place.inputs, false))
    }
}

impl GatedDelta<Listed> {
    /// Lists the tensors of the Gated DeltaNet that `spec` describes, in the layer at `place`.
    /// `variants` are the distinct shapes of the model's recurrent layers.
    pub fn listed(place: &LayerPlace<'_>, spec: &GatedDeltaSpec, variants: &[DeltaShape]) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        // Taken apart without `..`, so that a new field does not compile until it is read.
        let &GatedDeltaSpec {
            key_heads,
            value_heads,
            key_dim: _,
            value_dim,
            taps,
            ref names,
        } = spec;
        let taken = Taken {
            spec,
            keys: heads(spec, shard),
            each: value_heads / key_heads,
        };
        let [inputs, gates] = taken.projections(place);
        let of_heads = |name: &str| VectorPart::part(place.name(name), value_heads, taken.values());
        let convolution = convolution_part(
            &place.name(&names.convolution),
            spec.channels(1),
            taps,
            &taken.channels(),
        );
        let norm = place.name(&names.norm);
        let whole = Range {
            start: 0,
            end: value_dim,
        };
        let shape = delta_shape(spec, shard);
        Self {
            states: StatePlace::of(model, shard, place.number),
            shape,
            buffers: place_of(variants, &shape),
            eps: place.spec().rms_norm_eps,
            inputs,
            gates,
            convolution,
            a_log: of_heads(&names.a_log),
            dt_bias: of_heads(&names.dt_bias),
            // Its weights are stored as they are, whatever other norms' are.
            norm: VectorPart::norm(&norm, NormKind::Rms, value_dim, vec![whole]),
            output: Linear::of_inputs(
                &place.name(&names.output),
                model.hidden_size,
                value_heads * value_dim,
                scaled(&taken.values(), value_dim),
                false,
            ),
        }
    }
}

/// Returns the key heads of the rank of `shard`.
fn heads(spec: &GatedDeltaSpec, shard: &Shard) -> Range<usize> {
    let Place { rank, size } = shard.topology.attention;
    let each = spec.key_heads / size;
    rank * each..(rank + 1) * each
}

impl<F: Form> Tensors<F> for GatedDelta<F> {
    type In<T: Form> = GatedDelta<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<GatedDelta<C::To>, C::Error> {
        Ok(GatedDelta {
            states: self.states,
            shape: self.shape,
            buffers: self.buffers,
            eps: self.eps,
            inputs: self.inputs.convert(to)?,
            gates: self.gates.convert(to)?,
            convolution: to.vector(&self.convolution)?,
            a_log: to.vector(&self.a_log)?,
            dt_bias: to.vector(&self.dt_bias)?,
            norm: to.vector(&self.norm)?,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> GatedDelta<B> {
    /// Reads `input` `[n, inputs]`, updates states and records in `cache`, and writes the heads'
    /// output, before the output projection, to `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that have no recurrent layers;
    /// [`BackendError::OutOfMemory`] for working memory.
    pub fn run(
        &self,
        backend: &mut B,
        input: &B::Tensor,
        buffers: &mut GatedDeltaBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        let GatedDeltaBuffers {
            projected,
            gates,
            convolved,
            mixed,
        } = buffers;
        backend.matmul(input, self.inputs.operand(), projected);
        backend.matmul(input, self.gates.operand(), gates);
        let op = Weights {
            shape: self.shape,
            convolution: &self.convolution,
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
            norm: &self.norm,
            eps: self.eps,
        };
        let operands = DeltaOperands {
            projected,
            gates,
            space: convolved,
        };
        let states = cache.states(self.states)?;
        backend.gated_delta(states, self.states.layer, &op, operands, inputs, mixed)
    }
}
