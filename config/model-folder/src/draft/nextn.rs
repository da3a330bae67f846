//! A model's own draft layers, in the model's folder.

use std::path::Path;

use lockstep_files::weights::tensor_names;
use lockstep_types::{
    CheckpointFormat, ConfigError, DraftKind, DraftModel, LoadFormat, ModelConfig, NextnNames,
};

use super::OPTION;
use crate::families::{self, TextModel};
use crate::raw::Raw;

const ALGORITHM: &str = "--speculative-algorithm NEXTN";
const OTHERS: &str = "Give another --speculative-algorithm, or none";

/// Reads the draft layers of `target`. `path` is none, or the target's folder.
///
/// # Errors
/// [`ConfigError`]: another folder is named, the target has no draft layer, or is stored in a
/// way in which its draft layers are not served.
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
    let draft = match family.traits.draft_layer {
        Some(read) => read(&config, &layers, &target.names).map_err(damaged)?,
        None => None,
    };
    let model = format!("a {} model", target.architecture);
    let Some(draft) = draft else {
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
    let missing = match target.load_format {
        LoadFormat::Auto => draft.missing(&target.path),
        LoadFormat::Dummy => None,
    };
    if let Some(missing) = missing {
        let why = format!(
            "config.json, or the model's family, tells of a draft layer, but the folder has no \
             {missing}: this copy of the model leaves the layer out"
        );
        let remedy = format!("Get a copy that has it. Or: {OTHERS}");
        let model = format!("the model in {}", target.path.display());
        return Err(ConfigError::conflict(ALGORITHM, model, why, remedy));
    }
    let names = draft.names(&target.path);
    if names.len() > families::MOST_DRAFT_LAYERS {
        let why = format!(
            "the folder has more than {} draft layers",
            families::MOST_DRAFT_LAYERS
        );
        return Err(ConfigError::conflict(ALGORITHM, model, why, OTHERS));
    }
    let stored = tensor_names(&target.path).ok().flatten();
    let described = |names: &NextnNames| {
        let mut spec = draft.spec.clone();
        if let Some(stored) = &stored {
            families::stored_experts_of(&mut spec, &names.layer, stored);
        }
        spec
    };
    Ok(DraftModel {
        model: ModelConfig {
            layers: names.iter().map(described).collect(),
            ..target.clone()
        },
        kind: DraftKind::Nextn { names },
        own_embedding: false,
        own_head: false,
    })
}
