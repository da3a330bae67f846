//! A model's own draft layer, in the model's folder.

use std::path::Path;

use lockstep_files::weights::tensor_names;
use lockstep_types::{
    CheckpointFormat, ConfigError, DraftKind, DraftModel, LoadFormat, ModelConfig,
};

use super::OPTION;
use crate::families::{self, TextModel};
use crate::raw::Raw;

const ALGORITHM: &str = "--speculative-algorithm NEXTN";
const OTHERS: &str = "Give another --speculative-algorithm, or none";

/// Reads the draft layer of `target`. `path` is none, or the target's folder.
///
/// # Errors
/// [`ConfigError`]: another folder is named, the target has no draft layer, or is stored in a
/// way in which its draft layer is not served.
pub fn nextn(path: Option<&Path>, target: &ModelConfig) -> Result<DraftModel, ConfigError> {
    if let Some(path) = path.filter(|path| *path != target.path) {
        let message = "NEXTN drafts with a layer in the model's own folder. Leave the option out, \
                       or give the algorithm that the folder is for.";
        return Err(ConfigError::file(OPTION, path, message));
    }
    let damaged = |error| super::folder::damaged(&target.path, error);
    let text = Raw::read(&target.path, "config.json").and_then(TextModel::of);
    let TextModel { family, config, .. } = text.map_err(damaged)?;
    // As the family describes layers: experts may be stored in another form than the target's.
    let layers = (family.layers)(&config).map_err(damaged)?;
    let layer = match family.traits.draft_layer {
        Some(read) => read(&config, &layers, &target.names).map_err(damaged)?,
        None => None,
    };
    let model = format!("a {} model", target.architecture);
    let Some(mut layer) = layer else {
        let why = format!(
            "it drafts with a model's own draft layer, and this one has none; {} may have one",
            families::with_draft_layers()
        );
        return Err(ConfigError::conflict(ALGORITHM, model, why, OTHERS));
    };
    if target.checkpoint != CheckpointFormat::Floats {
        let why = "draft layers of quantized checkpoints are not served";
        return Err(ConfigError::conflict(ALGORITHM, model, why, OTHERS));
    }
    if target.load_format == LoadFormat::Auto && !layer.is_stored(&target.path) {
        let why = format!(
            "models of its family have a draft layer, but the folder has no {}.weight: this copy \
             of the model leaves the layer out",
            layer.names.projection
        );
        let remedy = format!("Get a copy that has it. Or: {OTHERS}");
        let model = format!("the model in {}", target.path.display());
        return Err(ConfigError::conflict(ALGORITHM, model, why, remedy));
    }
    if let Some(second) = layer.second(&target.path) {
        let why = format!(
            "the folder has a second draft layer, {second}, and models with several draft layers \
             are served without them alone"
        );
        return Err(ConfigError::conflict(ALGORITHM, model, why, OTHERS));
    }
    if let Some(stored) = tensor_names(&target.path).ok().flatten() {
        families::stored_experts_of(&mut layer.spec, &layer.names.layer, &stored);
    }
    Ok(DraftModel {
        model: ModelConfig {
            layers: vec![layer.spec],
            ..target.clone()
        },
        kind: DraftKind::Nextn { names: layer.names },
        own_embedding: false,
        own_head: false,
    })
}
