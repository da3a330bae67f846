//! Mamba-2: fused projections, the state space over a state of each text, the norm of groups, and
//! the projection back to the residual stream.

use std::ops::Range;

use lockstep_backend::{
    Backend, BackendError, ColumnGroups, DeltaShape, Holds, Mamba2 as Weights, Mamba2Operands,
    RmsNorm,
};
use lockstep_types::{Mamba2Spec, NormKind};

use crate::{
    Place, Shard, Topology,
    blocks::{
        LayerContext, LayerPlace, Linear,
        allocate::Allocate,
        cache::ModelCache,
        distinct::place_of,
        linear::Fused,
        parts::{Convert, Form, Listed, Tensors, VectorPart},
        recurrent::{StatePlace, bias_part, convolution_part, mamba_shape, moved, scaled},
    },
};

/// One rank's heads of one layer's Mamba-2 block.
pub(crate) struct Mamba2<F: Form> {
    /// Place of the layer among the model's states.
    pub states: StatePlace,
    /// Number and width of this rank's heads and copies of groups.
    pub shape: DeltaShape,
    /// Groups of columns that are normed together.
    pub groups: ColumnGroups,
    /// True if ranks have parts of groups, and sum the squares of all.
    pub shares_groups: bool,
    /// Index of the layer's buffers, one for each of the model's distinct sizes.
    pub buffers: usize,
    /// Epsilon added to the mean square in the norm of groups.
    pub eps: f32,
    /// Fused projection: `C`, `B` and `x`, then gates of the output.
    pub inputs: Linear<F>,
    /// Projection to the steps of heads.
    pub steps: Linear<F>,
    /// Taps of the convolution, the oldest first: for each the factors of all channels.
    pub convolution: F::Vector,
    /// Biases of the convolution.
    pub convolution_bias: Option<F::Vector>,
    /// Logarithms of the decays of this rank's heads.
    pub a_log: F::Vector,
    /// Biases of the steps of these heads.
    pub dt_bias: F::Vector,
    /// Factors of `x` in the outputs of these heads.
    pub skip: F::Vector,
    /// Weights of the norm of groups, one for each of this rank's columns.
    pub norm: F::Vector,
    /// Projection back to the residual stream.
    pub output: Linear<F>,
}

/// Sizes of a Mamba-2 block on one rank. Layers of equal sizes share buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mamba2Sizes {
    shape: DeltaShape,
    /// Groups of the whole model.
    groups: usize,
}

impl Mamba2Sizes {
    /// Returns the sizes on the rank of `shard`.
    pub fn of(spec: &Mamba2Spec, shard: &Shard) -> Self {
        Self {
            shape: mamba_shape(spec, shard),
            groups: spec.groups,
        }
    }
}

/// Activations of a Mamba-2 block, allocated once.
pub(crate) struct Mamba2Buffers<T> {
    /// `C`, `B`, `x` and gates, `[n, channels + width]`.
    pub projected: T,
    /// Steps of heads, `[n, heads]`.
    pub steps: T,
    /// `C`, `B` and `x` behind the convolution, `[n, channels]`.
    pub convolved: T,
    /// Gated output of the heads, `[n, width]`.
    pub gated: T,
    /// Sums of squares of groups, `[n, groups]`.
    pub squares: T,
    /// Normed output, `[n, width]`.
    pub mixed: T,
}

impl<T> Mamba2Buffers<T> {
    /// Allocates buffers of these sizes for passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        Mamba2Sizes { shape, groups }: Mamba2Sizes,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let (channels, width) = (shape.channels(), shape.value_width());
        let mut sums = |columns| device.activations(tokens, columns, Holds::Sum);
        Ok(Self {
            projected: sums(channels + width)?,
            steps: sums(shape.value_heads)?,
            convolved: sums(channels)?,
            gated: sums(width)?,
            squares: sums(groups)?,
            mixed: device.activations(tokens, width, Holds::Operand)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for buffer in [
            &mut self.projected,
            &mut self.steps,
            &mut self.convolved,
            &mut self.gated,
            &mut self.squares,
            &mut self.mixed,
        ] {
            backend.set_rows(buffer, rows);
        }
    }
}

/// Returns the channels of `x`, `B` and `C`, in that order in a checkpoint, that a rank with `heads`
/// takes: `C` first, then `B`, then `x`.
fn channels(spec: &Mamba2Spec, shard: &Shard, heads: &Range<usize>) -> Vec<Range<usize>> {
    let &Mamba2Spec {
        head_dim,
        groups,
        state_dim,
        ..
    } = spec;
    let each = spec.shared_by(shard.topology.attention.size);
    let in_group = spec.heads / groups;
    let copies = || heads.clone().step_by(each).map(|head| head / in_group);
    let (width, all) = (spec.width(), groups * state_dim);
    let at = |first: usize| {
        copies().map(move |group| moved(&(group * state_dim..(group + 1) * state_dim), first))
    };
    let of_groups = at(width + all).chain(at(width));
    of_groups.chain([scaled(heads, head_dim)]).collect()
}

/// Returns true if ranks have parts of groups.
fn shares_groups(spec: &Mamba2Spec, topology: Topology) -> bool {
    !spec.groups.is_multiple_of(topology.attention.size)
}

impl Mamba2<Listed> {
    /// Lists the tensors of the block that `spec` describes, in the layer at `place`. `variants` are
    /// the distinct sizes of the model's Mamba-2 blocks.
    pub fn listed(place: &LayerPlace<'_>, spec: &Mamba2Spec, variants: &[Mamba2Sizes]) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        // Taken apart without `..`, so that a new field does not compile until it is read.
        let &Mamba2Spec {
            heads: all,
            head_dim,
            groups,
            state_dim: _,
            taps,
            convolution_bias,
            bias,
            ref names,
        } = spec;
        let Place { rank, size } = shard.topology.attention;
        let heads = rank * (all / size)..(rank + 1) * (all / size);
        let (width, columns) = (spec.width(), scaled(&heads, head_dim));
        let channels = channels(spec, shard, &heads);
        let rows = |taken| Fused::of(place.name(&names.inputs), spec.rows(), taken);
        let mut inputs: Vec<_> = channels.iter().map(|own| moved(own, width)).collect();
        inputs.push(columns.clone());
        let steps = vec![moved(&heads, width + spec.channels())];
        let projection = |taken| Linear::of_outputs(&[rows(taken)], place.inputs, bias);
        let of_heads = |name: &str| VectorPart::part(place.name(name), all, heads.clone());
        let (name, norm) = (place.name(&names.convolution), place.name(&names.norm));
        let biases = || bias_part(&name, spec.channels(), channels.clone());
        Self {
            states: StatePlace::of(model, shard, place.number),
            shape: mamba_shape(spec, shard),
            groups: ColumnGroups {
                count: groups,
                width: width / groups,
                first: columns.start,
            },
            shares_groups: shares_groups(spec, shard.topology),
            buffers: place_of(variants, &Mamba2Sizes::of(spec, shard)),
            eps: place.spec().rms_norm_eps,
            inputs: projection(inputs),
            steps: projection(steps),
            convolution: convolution_part(&name, spec.channels(), taps, &channels),
            convolution_bias: convolution_bias.then(biases),
            a_log: of_heads(&names.a_log),
            dt_bias: of_heads(&names.dt_bias),
            skip: of_heads(&names.skip),
            norm: VectorPart::norm(&norm, NormKind::Rms, width, vec![columns.clone()]),
            output: Linear::of_inputs(
                &place.name(&names.output),
                model.hidden_size,
                width,
                columns,
                bias && shard.topology.attention.leads(),
            ),
        }
    }

    /// Returns the number of sums of squares that ranks add up, where they have parts of groups.
    pub fn squares(spec: &Mamba2Spec, topology: Topology) -> Option<usize> {
        shares_groups(spec, topology).then_some(spec.groups)
    }
}

impl<F: Form> Tensors<F> for Mamba2<F> {
    type In<T: Form> = Mamba2<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Mamba2<C::To>, C::Error> {
        Ok(Mamba2 {
            states: self.states,
            shape: self.shape,
            groups: self.groups,
            shares_groups: self.shares_groups,
            buffers: self.buffers,
            eps: self.eps,
            inputs: self.inputs.convert(to)?,
            steps: self.steps.convert(to)?,
            convolution: to.vector(&self.convolution)?,
            convolution_bias: to.optional(self.convolution_bias.as_ref())?,
            a_log: to.vector(&self.a_log)?,
            dt_bias: to.vector(&self.dt_bias)?,
            skip: to.vector(&self.skip)?,
            norm: to.vector(&self.norm)?,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> Mamba2<B> {
    /// Reads `input` `[n, inputs]`, updates states and records in `cache`, and writes the heads'
    /// normed output, before the output projection, to `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation;
    /// [`BackendError::OutOfMemory`] for working memory; [`BackendError::Collective`].
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: &B::Tensor,
        buffers: &mut Mamba2Buffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        let Mamba2Buffers {
            projected,
            steps,
            convolved,
            gated,
            squares,
            mixed,
        } = buffers;
        backend.matmul(input, self.inputs.operand(), projected);
        backend.matmul(input, self.steps.operand(), steps);
        let op = Weights {
            shape: self.shape,
            convolution: &self.convolution,
            convolution_bias: self.convolution_bias.as_ref(),
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
            skip: &self.skip,
        };
        let operands = Mamba2Operands {
            projected,
            steps,
            space: convolved,
        };
        let states = cache.states(self.states)?;
        backend.mamba2(states, self.states.layer, &op, operands, inputs, gated)?;
        backend.group_square_sums(gated, &self.groups, squares)?;
        if self.shares_groups {
            backend.all_reduce(context.attention_axis, squares)?;
        }
        let norm = RmsNorm {
            weight: &self.norm,
            eps: self.eps,
        };
        backend.group_norm(gated, &self.groups, squares, norm, mixed)
    }
}
