//! NEXTN: a model's own layers for multi-token prediction.

use std::path::Path;

use lockstep_backend::Backend;
use lockstep_types::{Algorithm, Capabilities, ConfigError, DraftKv, DraftModel, ModelConfig};

use crate::{Build, DraftError, Drafter, DrafterFactory};

/// The algorithm NEXTN. It reports that no served architecture has such layers: neither Llama
/// nor Mistral, Qwen2 nor Qwen3.
#[derive(Debug, Default, Clone, Copy)]
pub struct NextN;

const WHY: &str = "it drafts with a model's own multi-token prediction layers, and no architecture served here has any";
const REMEDY: &str = "Give EAGLE3, EAGLE or STANDALONE with a --speculative-draft-model-path, or NGRAM, which needs none";

impl Algorithm for NextN {
    fn name(&self) -> &str {
        "NEXTN"
    }

    fn summary(&self) -> &str {
        "the model's own layers for multi-token prediction, which no served architecture has"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_draft_model: false,
            draft_kv: DraftKv::None,
            supports_tree: false,
            supports_target_verify_for_draft: false,
            draft_probabilities: false,
            carries_hidden_states: true,
            adaptive: false,
            drafts_from_texts: false,
        }
    }

    fn load_draft(
        &self,
        _path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        Err(ConfigError::conflict(
            "--speculative-algorithm NEXTN",
            format!("a {} model", target.architecture),
            WHY,
            REMEDY,
        ))
    }
}

impl<B: Backend> DrafterFactory<B> for NextN {
    fn build(&self, _build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Err(DraftError::Config {
            algorithm: "NEXTN".to_owned(),
            reason: format!("{WHY}. {REMEDY}"),
        })
    }
}
