//! The MLP of a layer, of any kind: the block that computes each position by itself. An MLP
//! reads the residual stream through a norm, adds its output to the stream, and reads the sum
//! through the next norm.

mod experts;
mod gated;
mod parallel;
mod plain;

use lockstep_backend::{Axis, Backend, BackendError, BlockEnd, ExpertsShape};
use lockstep_types::{self as types, ModelConfig};

use super::{
    LayerContext, LayerPlace, Linear, MlpOperands,
    allocate::Allocate,
    distinct::distinct,
    parts::{Convert, Form, Listed, Listing, Tensors},
};
use crate::{CollectiveKind, CollectiveStep, Shard, Topology};
use experts::{ExpertBuffers, ExpertSizes, Experts};
use gated::{GatedMlp, GatedMlpBuffers};
use parallel::{ParallelBuffers, ParallelMlp, Spaces};
use plain::{PlainMlp, PlainMlpBuffers};

/// One rank's part of a layer's MLP.
pub(crate) enum Mlp<F: Form> {
    Gated(GatedMlp<F>),
    Plain(PlainMlp<F>),
    Experts(Experts<F>),
    Parallel(ParallelMlp<F>),
}

/// Distinct sizes of a model's MLPs on one rank, kind by kind. Layers of one size share
/// buffers. The lists are made once for a model, not once for each layer.
pub(crate) struct MlpVariants {
    /// Numbers of columns, as [`GatedMlp::columns`] counts them.
    gated: Vec<usize>,
    /// Numbers of columns, as [`PlainMlp::columns`] counts them.
    plain: Vec<usize>,
    experts: Vec<ExpertSizes>,
    /// Width of the residual stream, where MLPs and experts lie side by side.
    parallel: Option<usize>,
}

impl MlpVariants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        let (mut gated, mut plain, mut experts) = (Vec::new(), Vec::new(), Vec::new());
        let mut parallel = None;
        for layer in &model.layers {
            match &layer.mlp {
                types::Mlp::Gated(spec) => gated.push(GatedMlp::columns(spec, shard)),
                types::Mlp::Plain(spec) => plain.push(PlainMlp::columns(spec, shard)),
                types::Mlp::Experts(spec) => {
                    experts.push(ExpertSizes::of(spec, model, shard));
                }
                types::Mlp::Parallel(both) => {
                    gated.push(GatedMlp::columns(&both.gated, shard));
                    experts.push(ExpertSizes::of(&both.experts, model, shard));
                    parallel = Some(model.hidden_size);
                }
                types::Mlp::None => {}
            }
        }
        Self {
            gated: distinct(gated.into_iter()),
            plain: distinct(plain.into_iter()),
            experts: distinct(experts.into_iter()),
            parallel,
        }
    }
}

/// Returns the distinct shapes of the mixtures of experts among a rank's `mlps`, in `model`.
pub(crate) fn expert_shapes<'m>(
    model: &ModelConfig,
    mlps: impl Iterator<Item = &'m Mlp<Listed>>,
) -> Vec<ExpertsShape> {
    let shapes = mlps.filter_map(|mlp| match mlp {
        Mlp::Gated(_) | Mlp::Plain(_) => None,
        Mlp::Experts(experts) => experts.shape(model),
        Mlp::Parallel(both) => both.experts.shape(model),
    });
    distinct(shapes)
}

/// Activations of MLPs, for each kind and each of its variants.
pub(crate) struct MlpBuffers<T> {
    gated: Vec<GatedMlpBuffers<T>>,
    plain: Vec<PlainMlpBuffers<T>>,
    experts: Vec<ExpertBuffers<T>>,
    parallel: Option<ParallelBuffers<T>>,
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
        let gated = gated.collect::<Result<_, _>>()?;
        let plain = variants.plain.iter();
        let plain = plain.map(|columns| PlainMlpBuffers::new(device, *columns, rows));
        let plain = plain.collect::<Result<_, _>>()?;
        let experts = variants.experts.iter();
        let experts = experts.map(|sizes| ExpertBuffers::new(device, sizes, rows));
        let experts = experts.collect::<Result<_, _>>()?;
        let parallel = variants.parallel;
        let parallel = parallel.map(|hidden| ParallelBuffers::new(device, hidden, rows));
        Ok(Self {
            gated,
            plain,
            experts,
            parallel: parallel.transpose()?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        // Taken apart, so that no kind is forgotten.
        let Self {
            gated,
            plain,
            experts,
            parallel,
        } = self;
        for gated in gated {
            gated.set_rows(backend, rows);
        }
        for plain in plain {
            plain.set_rows(backend, rows);
        }
        for experts in experts {
            experts.set_rows(backend, rows);
        }
        if let Some(parallel) = parallel {
            parallel.set_rows(backend, rows);
        }
    }

    /// Sets the row count of the buffers for rows of this DP rank alone.
    pub fn set_own_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        if let Some(parallel) = &mut self.parallel {
            parallel.set_own_rows(backend, rows);
        }
    }
}

impl Mlp<Listed> {
    /// Lists the tensors of the MLP of the layer at `place`, which finds its own among
    /// `variants`; `None` of a layer without one.
    pub fn listed(place: &LayerPlace<'_>, variants: &MlpVariants) -> Option<Self> {
        Some(match &place.spec().mlp {
            types::Mlp::Gated(spec) => Self::Gated(GatedMlp::listed(place, spec, &variants.gated)),
            types::Mlp::Plain(spec) => Self::Plain(PlainMlp::listed(place, spec, &variants.plain)),
            types::Mlp::Experts(spec) => {
                Self::Experts(Experts::listed(place, spec, &variants.experts))
            }
            types::Mlp::Parallel(spec) => {
                let variants = (variants.gated.as_slice(), variants.experts.as_slice());
                Self::Parallel(ParallelMlp::listed(place, spec, variants))
            }
            types::Mlp::None => return None,
        })
    }

    /// Returns the number of elements of matrices that a position is multiplied with.
    pub fn products(&self) -> usize {
        match self {
            Self::Gated(gated) => gated.elements(),
            Self::Plain(plain) => plain.elements(),
            Self::Experts(experts) => experts.products(),
            Self::Parallel(both) => both.gated.elements() + both.experts.products(),
        }
    }

    /// Returns the collectives around the MLP `spec`, in a model of width `hidden`. With one DP rank,
    /// all ranks sum their results. With several, the rows of all DP ranks are gathered before the
    /// MLP, and the sum is scattered behind it. An MLP and experts side by side have
    /// [collectives of their own](ParallelMlp::collectives).
    pub fn collectives(
        spec: &types::Mlp,
        hidden: usize,
        topology: Topology,
        axis: Axis,
    ) -> Vec<CollectiveStep> {
        if let types::Mlp::Parallel(_) = spec {
            return ParallelMlp::collectives(hidden, topology, axis);
        }
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
            Self::Plain(plain) => Mlp::Plain(plain.convert(to)?),
            Self::Experts(experts) => Mlp::Experts(experts.convert(to)?),
            Self::Parallel(both) => Mlp::Parallel(both.convert(to)?),
        })
    }
}

impl<F: Form> Mlp<F> {
    /// Returns the projections that adapters may add to.
    pub fn adaptable(&mut self) -> Vec<&mut Linear<F>> {
        match self {
            Self::Gated(GatedMlp { gate_up, down, .. }) => vec![gate_up, down],
            Self::Plain(PlainMlp { up, down, .. }) => vec![up, down],
            Self::Experts(_) | Self::Parallel(_) => Vec::new(),
        }
    }
}

impl<B: Backend> Mlp<B> {
    /// Reads the residual stream as `normed` has it, adds the MLP's output to the stream, and ends
    /// the block with `end`.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] for a kind that the device does
    /// not run.
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        operands: MlpOperands<'_, B::Tensor>,
        buffers: &mut MlpBuffers<B::Tensor>,
        end: BlockEnd<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        match self {
            Self::Gated(gated) => {
                let buffers = &mut buffers.gated[gated.buffers];
                gated.run(backend, context, operands, buffers, end)
            }
            Self::Plain(plain) => {
                let buffers = &mut buffers.plain[plain.buffers];
                plain.run(backend, context, operands, buffers, end)
            }
            Self::Experts(experts) => {
                let buffers = &mut buffers.experts[experts.buffers];
                experts.run(backend, context.axis, operands, buffers, end)
            }
            Self::Parallel(both) => {
                let spaces = Spaces {
                    gated: &mut buffers.gated[both.gated.buffers],
                    experts: &mut buffers.experts[both.experts.buffers],
                    own: buffers.parallel.as_mut(),
                };
                both.run(backend, context.axis, operands, spaces, end)
            }
        }
    }
}
