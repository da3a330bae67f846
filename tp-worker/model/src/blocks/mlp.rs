//! The MLP of a layer, of any kind: the block that computes each position by itself. An MLP
//! reads the normed residual stream, adds its output to the residual stream, and norms the sum.

mod gated;

use lockstep_backend::{Axis, Backend, BackendError, RmsNorm};
use lockstep_types::{self as types, ModelConfig};

use super::{
    LayerPlace, MlpOperands,
    allocate::Allocate,
    distinct::distinct,
    parts::{Convert, Form, Listed, Tensors},
};
use crate::{CollectiveKind, CollectiveStep, Shard, Topology};
use gated::{GatedMlp, GatedMlpBuffers};

/// One rank's part of a layer's MLP.
pub(crate) enum Mlp<F: Form> {
    Gated(GatedMlp<F>),
}

/// Distinct sizes of a model's MLPs on one rank, kind by kind. Layers of one size share
/// buffers. The lists are made once for a model, not once for each layer.
pub(crate) struct MlpVariants {
    /// Numbers of columns, as [`GatedMlp::columns`] counts them.
    gated: Vec<usize>,
}

impl MlpVariants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        let mlps = || model.layers.iter().map(|layer| &layer.mlp);
        Self {
            gated: distinct(mlps().map(|mlp| match mlp {
                types::Mlp::Gated(spec) => GatedMlp::columns(spec, shard),
            })),
        }
    }
}

/// Activations of MLPs, for each kind and each of its variants.
pub(crate) struct MlpBuffers<T> {
    gated: Vec<GatedMlpBuffers<T>>,
}

impl<T> MlpBuffers<T> {
    /// Allocates buffers for `variants` and passes of at most `rows` rows.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        variants: &MlpVariants,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let gated = variants.gated.iter();
        let gated = gated.map(|columns| GatedMlpBuffers::new(device, *columns, rows));
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
    /// Lists the tensors of the MLP of the layer at `place`, which finds its own among
    /// `variants`.
    pub fn listed(place: &LayerPlace<'_>, variants: &MlpVariants) -> Self {
        match &place.spec().mlp {
            types::Mlp::Gated(spec) => Self::Gated(GatedMlp::listed(place, spec, &variants.gated)),
        }
    }

    /// Returns the collectives around an MLP of any kind, in a model of width `hidden`. With one
    /// DP rank, all ranks sum their results. With several, the rows of all DP ranks are gathered
    /// before the MLP, and the sum is scattered behind it.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Vec<CollectiveStep> {
        if topology.dp_size() == 1 {
            return vec![CollectiveStep::sum(axis, hidden)];
        }
        [CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
            .map(|kind| CollectiveStep::of_all(kind, axis, hidden))
            .into()
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
