//! Draft layers of models, which lie in their own files (multi-token prediction, DeepSeek-V3,
//! arXiv:2412.19437).

use std::path::Path;

use lockstep_files::weights::tensor_names;
use lockstep_types::{LayerSpec, Mixer, ModelConfigError, NextnNames, TensorNames};

use crate::raw::Raw;

/// A model's own draft layer.
pub(crate) struct DraftLayer {
    /// Description of the layer.
    pub spec: LayerSpec,
    /// Names of its tensors, and of those that join it to the model.
    pub names: NextnNames,
}

impl DraftLayer {
    /// Returns false if the weights in `folder` lack the layer: many copies of models leave it
    /// out. Files that can't be read are reported by the code that loads the model.
    pub(crate) fn is_stored(&self, folder: &Path) -> bool {
        let stored = tensor_names(folder).ok().flatten();
        let name = format!("{}.weight", self.names.projection);
        stored.is_none_or(|stored| stored.contains(&name))
    }

    /// Returns the name of a second draft layer, if the weights in `folder` have one. A
    /// `config.json` need not tell of it.
    pub(crate) fn second(&self, folder: &Path) -> Option<String> {
        let (before, number) = self.names.layer.rsplit_once('.')?;
        let next = number.parse::<usize>().ok()?.checked_add(1)?;
        let name = format!("{before}.{next}");
        let stored = tensor_names(folder).ok().flatten()?;
        let own = format!("{name}.");
        stored
            .iter()
            .any(|stored| stored.starts_with(&own))
            .then_some(name)
    }
}

/// Reads a draft layer of the model's own layers, given its `config.json`, its layers and its
/// names. `None` if the model has no draft layer.
pub(crate) type DraftLayerReader =
    fn(&Raw, &[LayerSpec], &TensorNames) -> Result<Option<DraftLayer>, ModelConfigError>;

/// Key with the number of draft layers of DeepSeek's models and of those written like them.
const LAYERS: &str = "num_nextn_predict_layers";
/// Key of an embedding of the draft layer's own.
const OWN_EMBEDDING: &str = "mtp_use_dedicated_embeddings";
/// Key with the number of draft layers of Qwen's models.
const QWEN_LAYERS: &str = "mtp_num_hidden_layers";

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
    if !has_one(config, LAYERS)? {
        return Ok(None);
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

/// Reads a draft layer beside the model, which is like the last layer with attention.
pub(super) fn beside_the_model(
    config: &Raw,
    layers: &[LayerSpec],
    _: &TensorNames,
) -> Result<Option<DraftLayer>, ModelConfigError> {
    let attends = |layer: &&LayerSpec| matches!(layer.mixer, Mixer::Attention(_));
    let Some(last) = layers.iter().rfind(attends) else {
        return Ok(None);
    };
    if !has_one(config, QWEN_LAYERS)? {
        return Ok(None);
    }
    if config.flag(OWN_EMBEDDING, false)? {
        let remedy = "draft layers read the model's embedding; give another \
                      --speculative-algorithm, or none";
        return Err(config.unsupported(OWN_EMBEDDING, remedy));
    }
    let name = |name: &str| format!("mtp.{name}");
    Ok(Some(DraftLayer {
        spec: last.clone(),
        names: NextnNames {
            projection: name("fc"),
            embedding_norm: name("pre_fc_norm_embedding"),
            hidden_norm: name("pre_fc_norm_hidden"),
            norm: name("norm"),
            layer: name("layers.0"),
        },
    }))
}

/// Returns true if there is a draft layer.
fn has_one(config: &Raw, key: &str) -> Result<bool, ModelConfigError> {
    match config.count(key)?.unwrap_or(0) {
        0 => Ok(false),
        1 => Ok(true),
        _ => {
            let remedy = "models with several draft layers are served without them alone; give \
                          another --speculative-algorithm, or none";
            Err(config.unsupported(key, remedy))
        }
    }
}
