//! Layers that GPUs do not have.

use lockstep_types::{LayerSpec, Mlp, ModelConfig};

/// Returns the reason why GPUs do not serve the layers of `model`; `None` if they do.
pub(super) fn lacking(model: &ModelConfig) -> Option<&'static str> {
    let beside = |layer: &LayerSpec| matches!(layer.mlp, Mlp::Parallel(_));
    if model.has_states() || model.has_output_gates() {
        Some("recurrent layers and output gates are not served on GPUs: give --device cpu")
    } else if model.attentions().any(|layer| layer.kv_of.is_some()) {
        Some("layers that share caches are not served on GPUs: give --device cpu")
    } else if model.per_layer.is_some() {
        Some("per-layer embeddings are not served on GPUs: give --device cpu")
    } else if model.layers.iter().any(beside) {
        Some("experts beside MLPs are not served on GPUs: give --device cpu")
    } else {
        None
    }
}
