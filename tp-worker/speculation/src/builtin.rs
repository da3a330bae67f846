//! The algorithms that every program knows.

use std::path::Path;

use lockstep_backend::Backend;
use lockstep_config::{
    Algorithm, Capabilities, ConfigError, DraftKv, DraftModel, DraftShape, ModelConfig,
};

use crate::{
    Build, DraftError, Drafter, Drafting, EagleDrafter, NextN, Ngram, Registry, StandaloneDrafter,
};

impl<B: Backend + 'static> Registry<B> {
    /// EAGLE, EAGLE3, STANDALONE, NGRAM and NEXTN.
    pub fn builtin() -> Self {
        Self::empty()
            .with(Eagle)
            .with(Eagle3)
            .with(Standalone)
            .with(Ngram::default())
            .with(NextN)
    }
}

/// EAGLE-1/2: a head on the target's last hidden state (Li et al.,
/// arXiv:2401.15077, arXiv:2406.16858).
#[derive(Debug, Clone, Copy)]
pub struct Eagle;

/// EAGLE-3: a head on the hidden states of three layers (Li et al.,
/// arXiv:2503.01840).
#[derive(Debug, Clone, Copy)]
pub struct Eagle3;

/// A small model with the target's tokenizer (Leviathan et al., arXiv:2211.17192).
#[derive(Debug, Clone, Copy)]
pub struct Standalone;

/// What drafting models have in common.
const MODEL: Capabilities = Capabilities {
    needs_draft_model: true,
    draft_kv: DraftKv::Pairs,
    supports_tree: true,
    supports_target_verify_for_draft: true,
    draft_probabilities: true,
    carries_hidden_states: true,
    adaptive: true,
};

/// The folder that was given.
///
/// # Errors
/// [`ConfigError`]: none was.
fn folder<'a>(algorithm: &dyn Algorithm, path: Option<&'a Path>) -> Result<&'a Path, ConfigError> {
    path.ok_or_else(|| {
        ConfigError::conflict(
            format!("--speculative-algorithm {}", algorithm.name()),
            "no --speculative-draft-model-path",
            format!("it drafts with {}", algorithm.summary()),
            "Name its folder with --speculative-draft-model-path",
        )
    })
}

impl Algorithm for Eagle {
    fn name(&self) -> &str {
        "EAGLE"
    }
    fn summary(&self) -> &str {
        "an EAGLE-1/2 head on the target's last hidden state"
    }
    fn capabilities(&self) -> Capabilities {
        MODEL
    }
    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        DraftModel::load_eagle(folder(self, path)?, target).map(Some)
    }
}

impl Algorithm for Eagle3 {
    fn name(&self) -> &str {
        "EAGLE3"
    }
    fn summary(&self) -> &str {
        "an EAGLE-3 head on hidden states of three of the target's layers"
    }
    fn capabilities(&self) -> Capabilities {
        MODEL
    }
    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        DraftModel::load_eagle3(folder(self, path)?, target).map(Some)
    }
}

impl Algorithm for Standalone {
    fn name(&self) -> &str {
        "STANDALONE"
    }
    fn summary(&self) -> &str {
        "a smaller model with the same tokenizer"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            draft_kv: DraftKv::Tokens,
            carries_hidden_states: false,
            ..MODEL
        }
    }
    fn default_shape(&self) -> DraftShape {
        DraftShape {
            num_steps: 4,
            topk: 1,
            num_draft_tokens: 5,
        }
    }
    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        DraftModel::load_model(folder(self, path)?, target).map(Some)
    }
}

impl<B: Backend + 'static> Drafting<B> for Eagle {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(Box::new(EagleDrafter::load(build)?))
    }
}

impl<B: Backend + 'static> Drafting<B> for Eagle3 {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(Box::new(EagleDrafter::load(build)?))
    }
}

impl<B: Backend + 'static> Drafting<B> for Standalone {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(Box::new(StandaloneDrafter::load(build)?))
    }
}
