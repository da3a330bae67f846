//! The last layers of small models: they have queries alone, and read the cache of the last layer
//! before them that has one of their kind.

use lockstep_types::{LayerSpec, Mlp, ModelConfigError};

use super::LayerType;
use crate::raw::Raw;

/// Key of the number of layers that read the caches of others.
pub(super) const LAYERS: &str = "num_kv_shared_layers";
/// Key that the MLPs of these layers are twice as wide.
pub(super) const DOUBLE_WIDE: &str = "use_double_wide_mlp";

/// Lets the last of `layers`, whose attentions are of the kinds `types`, read the caches of others.
///
/// # Errors
/// [`ModelConfigError`]: a layer has nothing to read, or a key is damaged.
pub(super) fn share(
    config: &Raw,
    types: &[LayerType],
    layers: &mut [LayerSpec],
) -> Result<(), ModelConfigError> {
    let (depth, double_wide) = (layers.len(), config.flag(DOUBLE_WIDE, false)?);
    let shared = config.count(LAYERS)?.unwrap_or(0);
    let Some(first) = depth.checked_sub(shared) else {
        let message = format!("is {shared}, and the model has {depth} layers");
        return Err(config.wrong(LAYERS, message));
    };
    for number in first..depth {
        let kind = types[number];
        let Some(before) = types[..first].iter().rposition(|other| *other == kind) else {
            let message = format!(
                "is {shared}, and no layer before these has a cache of `{}`",
                kind.name()
            );
            return Err(config.wrong(LAYERS, message));
        };
        let layer = &mut layers[number];
        if let Some(attention) = layer.attention_mut() {
            attention.kv_of = Some(before);
        }
        match &mut layer.mlp {
            Mlp::Gated(mlp) if double_wide => mlp.width *= 2,
            Mlp::Parallel(both) if double_wide => both.gated.width *= 2,
            _ => {}
        }
    }
    Ok(())
}
