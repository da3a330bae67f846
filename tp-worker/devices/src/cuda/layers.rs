//! Layers that GPUs have.

use lockstep_backend::DeltaShape;
use lockstep_backend_cuda::{CudaError, OTHER_RULES, check_delta};
use lockstep_types::{Mixer, ModelConfig};

/// Returns `Ok` if GPUs serve the layers of `model`.
///
/// # Errors
/// [`CudaError::Unsupported`] names what they do not have.
pub(super) fn served(model: &ModelConfig) -> Result<(), CudaError> {
    let mut mixers = model.layers.iter().map(|layer| &layer.mixer);
    mixers.try_for_each(|mixer| match mixer {
        Mixer::Attention(_) | Mixer::LatentAttention(_) | Mixer::None => Ok(()),
        Mixer::GatedDelta(delta) => check_delta(&DeltaShape::of(delta, 1)),
        Mixer::Mamba2(_) | Mixer::ShortConvolution(_) => {
            Err(CudaError::Unsupported(OTHER_RULES.into()))
        }
    })
}
