//! Gated short convolution: one fused projection, the convolution over columns of a state, and the
//! projection back to the residual stream.

use std::ops::Range;

use lockstep_backend::{
    Backend, BackendError, ConvolutionShape, Holds, ShortConvolution as Weights,
};
use lockstep_types::ShortConvolutionSpec;

use crate::{
    Place,
    blocks::{
        LayerPlace, Linear,
        allocate::Allocate,
        cache::ModelCache,
        distinct::place_of,
        linear::Fused,
        parts::{Convert, Form, Listed, Tensors},
        recurrent::{StatePlace, bias_part, convolution_part, convolution_shape, moved},
    },
};

/// One rank's channels of one layer's short convolution.
pub(crate) struct ShortConvolution<F: Form> {
    /// Place of the layer among the model's states.
    pub states: StatePlace,
    /// This rank's channels.
    pub shape: ConvolutionShape,
    /// Index of the layer's buffers, one for each of the model's distinct shapes.
    pub buffers: usize,
    /// Fused projection to the three parts.
    pub inputs: Linear<F>,
    /// Taps of the convolution, the oldest first: for each the factors of all channels.
    pub convolution: F::Vector,
    /// Biases of the convolution.
    pub bias: Option<F::Vector>,
    /// Projection back to the residual stream.
    pub output: Linear<F>,
}

/// Activations of a short convolution, allocated once.
pub(crate) struct ShortConvolutionBuffers<T> {
    /// The three parts, `[n, 3·channels]`.
    pub projected: T,
    /// Columns of the convolution, `[n, channels]`.
    pub columns: T,
    /// Output of the channels, `[n, channels]`.
    pub mixed: T,
}

impl<T> ShortConvolutionBuffers<T> {
    /// Allocates buffers for channels of `shape` and passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        shape: ConvolutionShape,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let channels = shape.channels;
        Ok(Self {
            projected: device.activations(tokens, 3 * channels, Holds::Sum)?,
            columns: device.activations(tokens, channels, Holds::Sum)?,
            mixed: device.activations(tokens, channels, Holds::Operand)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for buffer in [&mut self.projected, &mut self.columns, &mut self.mixed] {
            backend.set_rows(buffer, rows);
        }
    }
}

impl ShortConvolution<Listed> {
    /// Lists the tensors of the convolution that `spec` describes, in the layer at `place`.
    /// `variants` are the distinct shapes of the model's short convolutions.
    pub fn listed(
        place: &LayerPlace<'_>,
        spec: &ShortConvolutionSpec,
        variants: &[ConvolutionShape],
    ) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        // Taken apart without `..`, so that a new field does not compile until it is read.
        let &ShortConvolutionSpec {
            channels,
            taps,
            bias,
            ref names,
        } = spec;
        let shape = convolution_shape(spec, shard);
        let Place { rank, .. } = shard.topology.attention;
        let own: Range<usize> = rank * shape.channels..(rank + 1) * shape.channels;
        let parts = (0..3).map(|part| moved(&own, part * channels)).collect();
        let inputs = Fused::of(place.name(&names.inputs), 3 * channels, parts);
        let convolution = place.name(&names.convolution);
        let leads = shard.topology.attention.leads();
        Self {
            states: StatePlace::of(model, shard, place.number),
            shape,
            buffers: place_of(variants, &shape),
            inputs: Linear::of_outputs(&[inputs], place.inputs, bias),
            convolution: convolution_part(&convolution, channels, taps, std::slice::from_ref(&own)),
            bias: bias.then(|| bias_part(&convolution, channels, vec![own.clone()])),
            output: Linear::of_inputs(
                &place.name(&names.output),
                model.hidden_size,
                channels,
                own,
                bias && leads,
            ),
        }
    }
}

impl<F: Form> Tensors<F> for ShortConvolution<F> {
    type In<T: Form> = ShortConvolution<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<ShortConvolution<C::To>, C::Error> {
        Ok(ShortConvolution {
            states: self.states,
            shape: self.shape,
            buffers: self.buffers,
            inputs: self.inputs.convert(to)?,
            convolution: to.vector(&self.convolution)?,
            bias: to.optional(self.bias.as_ref())?,
            output: self.output.convert(to)?,
        })
    }
}

impl<B: Backend> ShortConvolution<B> {
    /// Reads `input` `[n, inputs]`, updates states and records in `cache`, and writes the channels'
    /// output, before the output projection, to `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on devices that do not have the operation;
    /// [`BackendError::OutOfMemory`] for working memory.
    pub fn run(
        &self,
        backend: &mut B,
        input: &B::Tensor,
        buffers: &mut ShortConvolutionBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        let ShortConvolutionBuffers {
            projected,
            columns,
            mixed,
        } = buffers;
        backend.matmul(input, self.inputs.operand(), projected);
        let op = Weights {
            shape: self.shape,
            convolution: &self.convolution,
            bias: self.bias.as_ref(),
        };
        let (states, layer) = (cache.states(self.states)?, self.states.layer);
        backend.short_convolution(states, layer, &op, projected, columns, inputs, mixed)
    }
}
