//! Draft layers of models, which lie in their own files (multi-token prediction, DeepSeek-V3,
//! arXiv:2412.19437).

use lockstep_types::{LayerSpec, ModelConfigError, NextnNames, TensorNames};

use crate::raw::Raw;

/// A model's own draft layer.
pub(crate) struct DraftLayer {
    /// Description of the layer.
    pub spec: LayerSpec,
    /// Names of its tensors, and of those that join it to the model.
    pub names: NextnNames,
}

/// Reads a draft layer of the model's own layers, given its `config.json`, its layers and its
/// names. `None` if the model has no draft layer.
pub(crate) type DraftLayerReader =
    fn(&Raw, &[LayerSpec], &TensorNames) -> Result<Option<DraftLayer>, ModelConfigError>;

/// Key with the number of draft layers.
const LAYERS: &str = "num_nextn_predict_layers";

/// Reads a draft layer that is like the last layer and follows it by number: that of a model of
/// 46 layers is "model.layers.46".
pub(super) fn behind_the_last(
    config: &Raw,
    layers: &[LayerSpec],
    names: &TensorNames,
) -> Result<Option<DraftLayer>, ModelConfigError> {
    let Some(last) = layers.last() else {
        return Ok(None);
    };
    match config.count(LAYERS)?.unwrap_or(0) {
        0 => return Ok(None),
        1 => {}
        _ => {
            let remedy = "models with several draft layers are served without them alone; give \
                          another --speculative-algorithm, or none";
            return Err(config.unsupported(LAYERS, remedy));
        }
    }
    let layer = names.layer(layers.len());
    let name = |name: &str| format!("{layer}.{name}");
    Ok(Some(DraftLayer {
        spec: last.clone(),
        names: NextnNames {
            projection: name("eh_proj"),
            embedding_norm: name("enorm"),
            hidden_norm: name("hnorm"),
            norm: name("shared_head.norm"),
            layer,
        },
    }))
}
