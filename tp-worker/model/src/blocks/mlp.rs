//! The MLP of a layer, of any kind: the block that computes each position by itself. An MLP
//! reads the normed residual stream, adds its output to the residual stream, and norms the sum.

use lockstep_backend::{Axis, Backend, BackendError, RmsNorm};
use lockstep_types::{self as types, LayerSpec};

use super::{
    GatedMlp, GatedMlpBuffers, LayerPlace, MlpOperands, Variants,
    allocate::Allocate,
    parts::{Convert, Form, Listed, Tensors},
};
use crate::{CollectiveStep, Shard, Topology};

/// One rank's part of a layer's MLP.
pub(crate) enum Mlp<F: Form> {
    Gated(GatedMlp<F>),
}

/// Activations of MLPs, for each kind and each of its variants.
pub(crate) struct MlpBuffers<T> {
    /// Buffers for each of [`Variants::gated_mlps`].
    pub gated: Vec<GatedMlpBuffers<T>>,
}

impl<T> MlpBuffers<T> {
    /// Allocates buffers for `variants` and passes of at most `rows` rows.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        variants: &Variants,
        shard: &Shard,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let gated = variants.gated_mlps.iter();
        let gated = gated.map(|width| GatedMlpBuffers::new(device, shard.mlp(*width).len(), rows));
        Ok(Self {
            gated: gated.collect::<Result<_, _>>()?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for gated in &mut self.gated {
            gated.set_rows(backend, rows);
        }
    }
}

impl Mlp<Listed> {
    /// Lists the tensors of the MLP of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        match &place.spec().mlp {
            types::Mlp::Gated(spec) => Self::Gated(GatedMlp::listed(place, spec)),
        }
    }

    /// Returns the collectives around the MLP of `layer`, in a model of width `hidden`.
    pub fn collectives(
        layer: &LayerSpec,
        hidden: usize,
        topology: Topology,
        axis: Axis,
    ) -> Vec<CollectiveStep> {
        match &layer.mlp {
            types::Mlp::Gated(_) => GatedMlp::collectives(hidden, topology, axis),
        }
    }
}

impl<F: Form> Tensors<F> for Mlp<F> {
    type In<T: Form> = Mlp<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Mlp<C::To>, C::Error> {
        Ok(match self {
            Self::Gated(gated) => Mlp::Gated(gated.convert(to)?),
        })
    }
}

impl<B: Backend> Mlp<B> {
    /// Reads the normed residual, adds the MLP's output to the residual stream, and norms the
    /// sum with `next`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn run(
        &self,
        backend: &mut B,
        axis: Axis,
        operands: MlpOperands<'_, B::Tensor>,
        buffers: &mut MlpBuffers<B::Tensor>,
        next: RmsNorm<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        match self {
            Self::Gated(gated) => {
                let buffers = &mut buffers.gated[gated.buffers];
                gated.run(backend, axis, operands, buffers, next)
            }
        }
    }
}
