//! Per-layer embeddings: what a layer adds to the residual stream behind its MLP, by the token
//! itself. [`lockstep_types::PerLayerEmbeddings`] has the formula.
//!
//! The table of tokens is split over ranks by its rows, as the embedding is, and looked up once in a
//! pass. Projections are small, and whole on every rank: a sum over ranks would take longer than the
//! products that it saves.

mod buffers;

use std::f32::consts::SQRT_2;

use lockstep_backend::{self as backend, Axis, Backend, BackendError, BlockEnd, LogitScaling};
use lockstep_types::{Activation, ModelConfig, PerLayerEmbeddings};

use super::{
    LayerPlace, Linear, Norm,
    linear::Fused,
    parts::{Convert, Form, Listed, MatrixPart, Tensors},
};
use crate::Shard;
pub(crate) use buffers::{PerLayerBuffers, PerLayerHalf};

/// Lists a rank's rows of the table of `model`, which has columns for all layers; `None` in models
/// without such embeddings.
pub(crate) fn table(model: &ModelConfig, shard: &Shard) -> Option<MatrixPart> {
    let own = model.per_layer.as_ref()?;
    let name = format!("{}.weight", model.names.per_layer.table);
    let columns = own.width * model.layers.len();
    let taken = shard.embedding.clone();
    Some(MatrixPart::table_rows(&name, own.rows, columns, taken))
}

/// The part of per-layer embeddings in one layer.
pub(crate) struct PerLayer<F: Form> {
    /// Number of columns of each layer.
    pub width: usize,
    /// The first of the layer's columns in the table.
    pub first: usize,
    /// Projection of embeddings, `[width, hidden]`.
    pub projection: Linear<F>,
    /// Norm of this projection, divided as the sum is that it joins.
    pub norm: Norm<F>,
    /// Projection from the residual stream, `[width, hidden]`.
    pub gate: Linear<F>,
    /// Number by which the stream is divided where the gate reads it.
    pub divisor: f32,
    /// Activation of the gate.
    pub activation: Activation,
    /// Projection back to the residual stream.
    pub output: Linear<F>,
    /// Norm of this projection.
    pub output_norm: Norm<F>,
}

impl PerLayer<Listed> {
    /// Lists the tensors of the layer at `place`; `None` in models without such embeddings.
    pub fn listed(place: &LayerPlace<'_>) -> Option<Self> {
        let (model, number) = (place.model, place.number);
        let &PerLayerEmbeddings {
            width,
            rows: _,
            factor: _,
            activation,
        } = model.per_layer.as_ref()?;
        let (names, hidden) = (&model.names.per_layer, model.hidden_size);
        let (first, eps) = (number * width, place.spec().rms_norm_eps);
        let projection = Fused::of(
            names.projection.clone(),
            width * model.layers.len(),
            vec![first..first + width; 1],
        );
        // Norms take no notice of a factor if their epsilon has its square: here of the root of the
        // width, and of the divisor that the stream begins with.
        let of_stream = hidden as f32 / model.multipliers.residual.powi(2);
        let mut norm = Norm::of_columns(&names.norm, width, eps * of_stream);
        norm.weight.over = SQRT_2;
        let output_norm = place.name(&names.output_norm);
        Some(Self {
            width,
            first,
            projection: Linear::of_outputs(&[projection], hidden, false),
            norm,
            gate: Linear::whole(&place.name(&names.gate), width, hidden, false),
            divisor: model.stream_divisor(number),
            activation,
            output: Linear::whole(&place.name(&names.output), hidden, width, false),
            output_norm: Norm::of_output(model, number, &output_norm, eps),
        })
    }
}

impl<F: Form> Tensors<F> for PerLayer<F> {
    type In<T: Form> = PerLayer<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<PerLayer<C::To>, C::Error> {
        Ok(PerLayer {
            width: self.width,
            first: self.first,
            projection: self.projection.convert(to)?,
            norm: self.norm.convert(to)?,
            gate: self.gate.convert(to)?,
            divisor: self.divisor,
            activation: self.activation,
            output: self.output.convert(to)?,
            output_norm: self.output_norm.convert(to)?,
        })
    }
}

/// Looks up the rows of the table `[rows, layers·w]`, whose first token here is `first`, as the sums
/// take them: divided by `√2`. The sum over ranks is what each layer takes its columns of.
pub(crate) fn look_up<B: Backend>(
    backend: &mut B,
    (table, own): (&B::Matrix, &PerLayerEmbeddings),
    first: u32,
    inputs: &B::Inputs,
    buffers: &mut PerLayerBuffers<B::Tensor>,
) {
    let factor = own.factor / SQRT_2;
    backend.embed(table, first, factor, inputs, &mut buffers.embedded);
}

impl<B: Backend> PerLayer<B> {
    /// Computes the layer's input of every token of the pass in `buffers`.
    pub fn prepare(&self, backend: &mut B, buffers: &mut PerLayerBuffers<B::Tensor>) {
        let PerLayerBuffers {
            embedded,
            first,
            input,
            sums,
            operands,
            ..
        } = buffers;
        self.projection.run(backend, first, sums);
        backend.take_columns(embedded, self.first, input);
        let end = BlockEnd {
            output: Some(self.norm.rms()),
            next: None,
        };
        backend.end_block(input, Some(sums), end, operands);
    }

    /// Adds the layer's part to the residual stream, which `normed` has as it is, and reads the sum
    /// through the norm `next`, or as it is. Ranks exchange nothing for that.
    ///
    /// # Errors
    /// Those of [`lockstep_backend::Exchange::matmul_end_block`].
    pub fn add(
        &self,
        backend: &mut B,
        half: PerLayerHalf<'_, B::Tensor>,
        [residual, delta, normed]: [&mut B::Tensor; 3],
        next: Option<backend::Norm<'_, B::Vector>>,
    ) -> Result<(), BackendError> {
        let PerLayerHalf {
            input,
            sums,
            gate_up,
            operands,
        } = half;
        self.gate.run(backend, normed, sums);
        if self.divisor != 1.0 {
            let scaling = LogitScaling {
                divisor: self.divisor.recip(),
                softcap: None,
            };
            backend.scale_logits(sums, scaling);
        }
        backend.place_columns(sums, gate_up, 0);
        backend.place_columns(input, gate_up, self.width);
        backend.gate(gate_up, self.activation, operands);
        let end = BlockEnd {
            output: Some(self.output_norm.rms()),
            next,
        };
        let output = self.output.row_parallel(Axis::Alone);
        backend.matmul_end_block(operands, output, residual, delta, end, normed)
    }
}
