//! Models that draft: whole models, heads, and draft layers of models.

use std::path::Path;

use lockstep_types::{ConfigError, DraftKind, DraftModel, LoadFormat, ModelConfig};

use crate::Described;

mod capture;
mod dflash;
mod folder;
mod nextn;
mod norms;
mod tokens;

use folder::{Folder, Found};
pub use nextn::nextn;

/// The option with the draft's folder.
pub const OPTION: &str = "--speculative-draft-model-path";

/// Reads a whole model. Any model that could be served itself fits if it has the target's
/// vocabulary.
///
/// # Errors
/// [`ConfigError::File`]: the folder is missing, damaged or of another kind, or its tokens are
/// not the target's.
pub fn whole_model(path: &Path, target: &ModelConfig) -> Result<DraftModel, ConfigError> {
    Folder::of(path, target)?.must_hold(Found::Model)?;
    let described = Described::of(path).and_then(|described| match target.load_format {
        LoadFormat::Auto => described.with_weights(),
        LoadFormat::Dummy => Ok(described),
    });
    let mut model = described
        .map_err(|error| folder::damaged(path, error))?
        .model;
    if model.vocab_size != target.vocab_size {
        return Err(ConfigError::file(
            OPTION,
            path,
            format!(
                "the model has {} tokens and the target {}; give a smaller model of the \
                 target's own family, with the same tokenizer.",
                model.vocab_size, target.vocab_size
            ),
        ));
    }
    if model.has_states() {
        let message = "models with recurrent layers can't draft; give a draft model whose layers all \
                       have attention, or another --speculative-algorithm.";
        return Err(ConfigError::file(OPTION, path, message.to_owned()));
    }
    tokens::compare(path, &target.path)?;
    loaded_like(&mut model, target);
    ends_like(&mut model, target);
    Ok(DraftModel {
        model,
        kind: DraftKind::Model,
        own_embedding: true,
        own_head: true,
    })
}

/// Name of the algorithm that drafts with the head in a folder; `None` for a whole model and
/// for a folder that can't be read.
pub fn head_of(path: &Path) -> Option<&'static str> {
    folder::head_of(path)
}

/// Reads an EAGLE-1/2 head in SafeAILab's layout.
///
/// # Errors
/// [`ConfigError::File`]: the folder is missing, damaged or of another kind, or the head was
/// made for another model.
pub fn eagle(path: &Path, target: &ModelConfig) -> Result<DraftModel, ConfigError> {
    let folder = Folder::of(path, target)?;
    folder.must_hold(Found::Eagle)?;
    Ok(DraftModel {
        model: head(&folder, target)?,
        kind: DraftKind::Eagle,
        own_embedding: folder.has(EMBEDDING),
        // The target's own head reads the hidden states.
        own_head: false,
    })
}

/// Reads an EAGLE-3 head in the layout of SafeAILab, SpecForge and SGLang.
///
/// # Errors
/// [`ConfigError::File`]: the folder is missing, damaged or of another kind, or the head was
/// made for another model.
pub fn eagle3(path: &Path, target: &ModelConfig) -> Result<DraftModel, ConfigError> {
    let folder = Folder::of(path, target)?;
    folder.must_hold(Found::Eagle3)?;
    let model = head(&folder, target)?;
    let damaged = |error| folder::damaged(path, error);
    let norms = norms::read(&folder)?;
    if target.stream_divisor(target.layers.len()) != 1.0 {
        return Err(ConfigError::file(
            OPTION,
            path,
            format!(
                "EAGLE-3 heads are not served for {} models, whose residual stream has factors of \
                 its own. Give a smaller model of the family, or another --speculative-algorithm.",
                target.architecture
            ),
        ));
    }
    let draft_vocab_size = folder
        .config
        .size("draft_vocab_size")
        .map_err(damaged)?
        .unwrap_or(target.vocab_size);
    if draft_vocab_size > target.vocab_size {
        let message = format!("is more than the target's {} tokens", target.vocab_size);
        return Err(damaged(folder.config.wrong("draft_vocab_size", message)));
    }
    let capture_layers = capture::layers(&folder, target.layers.len())?;
    Ok(DraftModel {
        model,
        kind: DraftKind::Eagle3 {
            draft_vocab_size,
            capture_layers,
            norms,
        },
        own_embedding: folder.has(EMBEDDING),
        // The target's head can stand in only for the whole vocabulary.
        own_head: folder.has("lm_head.weight") || draft_vocab_size < target.vocab_size,
    })
}

/// Reads a DFlash model in z-lab's layout.
///
/// # Errors
/// [`ConfigError::File`]: the folder is missing, damaged or of another kind, or the model was
/// made for another target.
pub fn dflash(path: &Path, target: &ModelConfig) -> Result<DraftModel, ConfigError> {
    let folder = Folder::of(path, target)?;
    folder.must_hold(Found::Dflash)?;
    dflash::read(&folder, target)
}

/// Tensor of a head's own embedding.
const EMBEDDING: &str = "embed_tokens.weight";

/// The one layer of a head, checked to be made for the target.
fn head(folder: &Folder, target: &ModelConfig) -> Result<ModelConfig, ConfigError> {
    let path = &folder.path;
    let damaged = |error| folder::damaged(path, error);
    let mut model = crate::model::head(path, &folder.config).map_err(damaged)?;
    // SafeAILab's name for biases on q, k and v alone.
    let qkv_bias = folder.config.flag("qkv_bias", false).map_err(damaged)?;
    for layer in &mut model.layers {
        if let Some(attention) = layer.attention_mut() {
            attention.qkv_bias |= qkv_bias;
        }
    }
    if model.layers.len() != 1 {
        let remedy = "heads have one layer";
        return Err(damaged(
            folder.config.unsupported("num_hidden_layers", remedy),
        ));
    }
    let width = folder
        .config
        .size("target_hidden_size")
        .map_err(damaged)?
        .unwrap_or(target.hidden_size);
    let sizes = [("a target's hidden size", width, target.hidden_size)];
    same_sizes(path, "head", sizes)?;
    made_for(path, "head", &model, target)?;
    // Nobody reads a head's own first token, so heads do not differ by it.
    model.bos_token_id = target.bos_token_id;
    ends_like(&mut model, target);
    loaded_like(&mut model, target);
    Ok(model)
}

/// Checks that a draft, which people know as `what`, has the target's width and vocabulary.
fn made_for(
    path: &Path,
    what: &str,
    model: &ModelConfig,
    target: &ModelConfig,
) -> Result<(), ConfigError> {
    let sizes = [
        ("a hidden size", model.hidden_size, target.hidden_size),
        ("a vocabulary", model.vocab_size, target.vocab_size),
    ];
    same_sizes(path, what, sizes)
}

/// Checks that sizes of a draft are the target's: name, size, and the target's size.
fn same_sizes(
    path: &Path,
    what: &str,
    sizes: impl IntoIterator<Item = (&'static str, usize, usize)>,
) -> Result<(), ConfigError> {
    for (size, found, target) in sizes {
        if found != target {
            return Err(ConfigError::file(
                OPTION,
                path,
                format!(
                    "the {what} was made for another model: it has {size} of {found}, and the \
                     target's is {target}. Give the {what} trained for this model."
                ),
            ));
        }
    }
    Ok(())
}

/// Takes source and rounding of the target's weights.
fn loaded_like(model: &mut ModelConfig, target: &ModelConfig) {
    model.load_format = target.load_format;
    model.quantization = target.quantization;
}

/// Takes the target's end tokens.
fn ends_like(model: &mut ModelConfig, target: &ModelConfig) {
    model.eos_token_ids.clone_from(&target.eos_token_ids);
    model.tokenizer_eos_id = target.tokenizer_eos_id;
}

#[cfg(test)]
mod tests;
