//! Draft layers of models, which lie in their own files (multi-token prediction, DeepSeek-V3,
//! arXiv:2412.19437).

use std::collections::BTreeSet;
use std::iter::successors;
use std::path::Path;

use lockstep_files::weights::tensor_names;
use lockstep_types::{LayerSpec, Mixer, ModelConfigError, NextnNames, TensorNames};

use crate::raw::Raw;

/// A model's own draft layers.
pub(crate) struct DraftLayers {
    /// Description of each layer.
    pub spec: LayerSpec,
    /// Names of the first layer's tensors, and of those that join it to the model.
    first: NextnNames,
    /// Number of layers that `config.json` tells of.
    told: usize,
}

/// Most draft layers of a model that are served. No published model has more than eight.
pub(crate) const MOST: usize = 16;

impl DraftLayers {
    /// Returns the first tensor or layer that the weights in `folder` lack, of the layers that
    /// `config.json` tells of: many copies of models leave them out. Files that can't be read are
    /// reported by the code that loads the model.
    pub(crate) fn missing(&self, folder: &Path) -> Option<String> {
        let stored = tensor_names(folder).ok().flatten()?;
        let all = successors(Some(self.first.clone()), behind).take(self.told);
        let mut missing = all.filter(|names| !has_layer(&stored, names));
        let names = missing.next()?;
        match stored.contains(&format!("{}.weight", names.projection)) {
            // Layers may share a projection.
            true => Some(names.layer),
            false => Some(format!("{}.weight", names.projection)),
        }
    }

    /// Returns the names of all layers: of those that `config.json` tells of, and of those behind
    /// them that `folder` has. A `config.json` need not tell of any but the first. Not more than
    /// one above [`MOST`].
    pub(crate) fn names(&self, folder: &Path) -> Vec<NextnNames> {
        let stored = tensor_names(folder).ok().flatten().unwrap_or_default();
        let all = successors(Some(self.first.clone()), behind).take(MOST + 1);
        let all = all.enumerate();
        let there = all.take_while(|(at, names)| *at < self.told || has_layer(&stored, names));
        there.map(|(_, names)| names).collect()
    }
}

/// Returns true if a layer is stored, and the projection that joins it to the model.
fn has_layer(stored: &BTreeSet<String>, names: &NextnNames) -> bool {
    let own = format!("{}.", names.layer);
    let has_own = stored.range(own.clone()..).next();
    has_own.is_some_and(|name| name.starts_with(&own))
        && stored.contains(&format!("{}.weight", names.projection))
}

/// Returns the names of the layer behind the one of `names`, whose number is one higher. Tensors
/// that are not below a layer belong to all layers.
fn behind(names: &NextnNames) -> Option<NextnNames> {
    let (before, number) = names.layer.rsplit_once('.')?;
    let number = number.parse::<usize>().ok()?.checked_add(1)?;
    let layer = format!("{before}.{number}");
    let own = |name: &str| match name.strip_prefix(&names.layer) {
        Some(rest) => format!("{layer}{rest}"),
        None => name.to_owned(),
    };
    Some(NextnNames {
        projection: own(&names.projection),
        embedding_norm: own(&names.embedding_norm),
        hidden_norm: own(&names.hidden_norm),
        norm: own(&names.norm),
        layer,
    })
}

/// Reads the draft layers of a model, given its `config.json`, its layers and its names. `None` if
/// the model has no draft layer.
pub(crate) type DraftLayerReader =
    fn(&Raw, &[LayerSpec], &TensorNames) -> Result<Option<DraftLayers>, ModelConfigError>;

/// Key with the number of draft layers of DeepSeek's models and of those written like them.
const LAYERS: &str = "num_nextn_predict_layers";
/// Key of an embedding of the draft layer's own.
const OWN_EMBEDDING: &str = "mtp_use_dedicated_embeddings";
/// Key with the number of draft layers of Qwen's models.
const QWEN_LAYERS: &str = "mtp_num_hidden_layers";

/// Reads draft layers that are like the last layer and follow it by number: the first one of a
/// model of 46 layers is "model.layers.46".
pub(super) fn behind_the_last(
    config: &Raw,
    layers: &[LayerSpec],
    names: &TensorNames,
) -> Result<Option<DraftLayers>, ModelConfigError> {
    let Some(last) = layers.last() else {
        return Ok(None);
    };
    let told = count(config, LAYERS)?;
    if told == 0 {
        return Ok(None);
    }
    let layer = names.layer(layers.len());
    let name = |name: &str| format!("{layer}.{name}");
    Ok(Some(DraftLayers {
        spec: last.clone(),
        told,
        first: NextnNames {
            projection: name("eh_proj"),
            embedding_norm: name("enorm"),
            hidden_norm: name("hnorm"),
            norm: name("shared_head.norm"),
            layer,
        },
    }))
}

/// Reads draft layers beside the model, which are like the last layer with attention. They share
/// a projection and norms.
pub(super) fn beside_the_model(
    config: &Raw,
    layers: &[LayerSpec],
    _: &TensorNames,
) -> Result<Option<DraftLayers>, ModelConfigError> {
    let attends = |layer: &&LayerSpec| matches!(layer.mixer, Mixer::Attention(_));
    let Some(last) = layers.iter().rfind(attends) else {
        return Ok(None);
    };
    let told = count(config, QWEN_LAYERS)?;
    if told == 0 {
        return Ok(None);
    }
    if config.flag(OWN_EMBEDDING, false)? {
        let remedy = "draft layers read the model's embedding; give another \
                      --speculative-algorithm, or none";
        return Err(config.unsupported(OWN_EMBEDDING, remedy));
    }
    let name = |name: &str| format!("mtp.{name}");
    Ok(Some(DraftLayers {
        spec: last.clone(),
        told,
        first: NextnNames {
            projection: name("fc"),
            embedding_norm: name("pre_fc_norm_embedding"),
            hidden_norm: name("pre_fc_norm_hidden"),
            norm: name("norm"),
            layer: name("layers.0"),
        },
    }))
}

/// Returns the number of draft layers.
fn count(config: &Raw, key: &str) -> Result<usize, ModelConfigError> {
    match config.count(key)?.unwrap_or(0) {
        told @ 0..=MOST => Ok(told),
        _ => {
            let remedy = format!(
                "at most {MOST} draft layers are served; give another --speculative-algorithm, or \
                 none"
            );
            Err(config.unsupported(key, remedy))
        }
    }
}
