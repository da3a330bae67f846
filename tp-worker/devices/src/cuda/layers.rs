//! Layers that GPUs have.

use lockstep_backend::{DeltaShape, Recurrence};
use lockstep_backend_cuda::{CudaError, check_recurrence};
use lockstep_types::{Mamba2Spec, Mixer, ModelConfig};

/// Returns `Ok` if GPUs serve the layers of `model`.
///
/// # Errors
/// [`CudaError::Unsupported`] names what they do not have.
pub(super) fn served(model: &ModelConfig) -> Result<(), CudaError> {
    let mut mixers = model.layers.iter().map(|layer| &layer.mixer);
    mixers.try_for_each(|mixer| match mixer {
        // The widths of channels do not matter.
        Mixer::Attention(_)
        | Mixer::LatentAttention(_)
        | Mixer::ShortConvolution(_)
        | Mixer::None => Ok(()),
        Mixer::GatedDelta(delta) => check_recurrence(&Recurrence::Delta(DeltaShape::of(delta, 1))),
        Mixer::Mamba2(mamba) => check_recurrence(&Recurrence::Mamba2(heads_of(mamba))),
    })
}

/// Heads of a Mamba-2 block on one rank.
fn heads_of(mamba: &Mamba2Spec) -> DeltaShape {
    DeltaShape {
        key_heads: mamba.groups,
        value_heads: mamba.heads,
        key_dim: mamba.state_dim,
        value_dim: mamba.head_dim,
        taps: mamba.taps,
    }
}
