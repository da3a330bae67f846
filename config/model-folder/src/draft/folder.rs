//! The kind of a draft's folder, found by its tensors, or by DFlash's keys.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lockstep_files::shown;
use lockstep_files::weights::tensor_names;
use lockstep_types::{ConfigError, LoadFormat, ModelConfig, ModelConfigError};

use super::OPTION;
use crate::raw::Raw;

/// Object of DFlash's keys; some stand outside of it too.
pub(super) const DFLASH: &str = "dflash_config";

/// Kinds of draft folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A whole model.
    Model,
    /// An EAGLE-1/2 head.
    Eagle,
    /// An EAGLE-3 head.
    Eagle3,
    /// A DFlash model.
    Dflash,
}

/// A draft's folder.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) config: Raw,
    /// Names of all tensors; `None` if weights are made up.
    tensors: Option<BTreeSet<String>>,
}

impl Folder {
    /// Reads `config.json` and the names of the tensors. If the target's weights are made up,
    /// so are the draft's, and no names are read.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub(super) fn of(path: &Path, target: &ModelConfig) -> Result<Self, ConfigError> {
        let config = Raw::read(path, "config.json").map_err(|error| damaged(path, error))?;
        for key in ["speculators_config", "transformer_layer_config"] {
            if config.get(key).is_some() {
                return Err(ConfigError::file(
                    OPTION,
                    path,
                    format!(
                        "config.json has `{key}`: it is in the layout of the speculators \
                         library. Give the head in the layout it was trained in, where \
                         config.json describes the layer itself."
                    ),
                ));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            config,
            tensors: match target.load_format {
                LoadFormat::Auto => Some(tensors(path)?),
                LoadFormat::Dummy => None,
            },
        })
    }

    /// Checks that the folder holds what is wanted.
    ///
    /// # Errors
    /// [`ConfigError::File`] with the kind that was found, and the algorithm for it.
    pub(super) fn must_hold(&self, wanted: Found) -> Result<(), ConfigError> {
        // Made-up weights fit any kind.
        let found = self.tensors.as_ref().map(|tensors| self.found(tensors));
        let Some(found) = found.filter(|found| *found != wanted) else {
            return Ok(());
        };
        Err(ConfigError::file(
            OPTION,
            &self.path,
            format!(
                "holds {}, but {} is needed. Give --speculative-algorithm {} for it, or another \
                 folder.",
                found.name(),
                wanted.name(),
                found.algorithm()
            ),
        ))
    }

    /// Returns true if there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let tensors = self.tensors.as_ref();
        tensors.is_some_and(|tensors| tensors.contains(name))
    }

    /// Returns true if the names of the tensors are known.
    pub(super) fn lists_tensors(&self) -> bool {
        self.tensors.is_some()
    }

    /// The kind that the tensors belong to. Names of architectures don't tell heads: public
    /// ones call themselves `LlamaForCausalLM` too. DFlash's models have keys of their own.
    fn found(&self, tensors: &BTreeSet<String>) -> Found {
        let any = |part: &str| tensors.iter().any(|name| name.contains(part));
        let third = self.config.get("draft_vocab_size").is_some();
        let class = class_of(&self.config).unwrap_or_default();
        if self.config.get(DFLASH).is_some() || class.starts_with("DFlash") {
            Found::Dflash
        } else if any("midlayer.") || any("hidden_norm.") || any("d2t") {
            Found::Eagle3
        } else if !self.has("fc.weight") && !any(".fc.weight") {
            Found::Model
        } else if third {
            Found::Eagle3
        } else {
            Found::Eagle
        }
    }
}

impl Found {
    fn name(self) -> &'static str {
        match self {
            Self::Model => "a whole model",
            Self::Eagle => "an EAGLE-1/2 head",
            Self::Eagle3 => "an EAGLE-3 head",
            Self::Dflash => "a DFlash model",
        }
    }

    /// The algorithm that drafts with this kind.
    fn algorithm(self) -> &'static str {
        match self {
            Self::Model => "STANDALONE",
            Self::Eagle => "EAGLE",
            Self::Eagle3 => "EAGLE3",
            Self::Dflash => "DFLASH",
        }
    }
}

/// Class name of the architecture in a `config.json`.
pub(super) fn class_of(config: &Raw) -> Option<&str> {
    config.get("architectures")?.get(0)?.as_str()
}

/// The algorithm of the head in a folder; `None` for a whole model, and for a folder that can't
/// be read.
pub(super) fn head_of(path: &Path) -> Option<&'static str> {
    let folder = Folder {
        path: path.to_owned(),
        config: Raw::read(path, "config.json").ok()?,
        tensors: Some(tensors(path).ok()?),
    };
    match folder.found(folder.tensors.as_ref()?) {
        Found::Model => None,
        head => Some(head.algorithm()),
    }
}

/// The error for a draft's `config.json` that can't be read or served.
pub(super) fn damaged(path: &Path, error: ModelConfigError) -> ConfigError {
    let message = match error {
        ModelConfigError::Read { message, .. } => {
            format!("config.json: {message}. Name a folder with config.json and safetensors.")
        }
        other => other.to_string(),
    };
    ConfigError::file(OPTION, path, message)
}

fn tensors(folder: &Path) -> Result<BTreeSet<String>, ConfigError> {
    let names = tensor_names(folder);
    let names = names.map_err(|error| {
        let message = format!("{}.", shown(&error.to_string()));
        ConfigError::file(OPTION, folder, message)
    })?;
    names.ok_or_else(|| {
        let message = if folder.join("pytorch_model.bin").exists() {
            "has its weights in pytorch_model.bin, a format that can carry code and is never \
             read. Convert it: load it with torch.load(weights_only=True), save it as \
             model.safetensors with safetensors.torch.save_file."
        } else {
            "has no model.safetensors. Name a folder with config.json and safetensors."
        };
        ConfigError::file(OPTION, folder, message)
    })
}
