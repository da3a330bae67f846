//! The algorithms that every program has.

use std::path::Path;

use lockstep_backend::Backend;
use lockstep_types::{
    Algorithm, Capabilities, ConfigError, DraftKind, DraftKv, DraftModel, DraftShape, ModelConfig,
};

use crate::{
    Build, DraftError, Drafter, DrafterFactory, DrafterRegistry, EagleDrafter, JumpForward, Ngram,
    StandaloneDrafter,
};

impl<B: Backend + 'static> DrafterRegistry<B> {
    /// Makes a registry of EAGLE, EAGLE3, STANDALONE, NGRAM and JUMP_FORWARD.
    pub fn builtin() -> Self {
        Self::empty()
            .with(EAGLE)
            .with(EAGLE3)
            .with(STANDALONE)
            .with(Ngram::default())
            .with(JumpForward)
    }
}

/// An algorithm that drafts with a model in a folder of its own.
#[derive(Debug, Clone, Copy)]
pub struct WithModel {
    name: &'static str,
    summary: &'static str,
    draft_kv: DraftKv,
    carries_hidden_states: bool,
    num_steps: usize,
    pause_window: usize,
    load: fn(&Path, &ModelConfig) -> Result<DraftModel, ConfigError>,
}

/// EAGLE-1/2: a head that reads the target's last hidden state (Li et al., arXiv:2401.15077,
/// arXiv:2406.16858).
pub const EAGLE: WithModel = WithModel {
    name: "EAGLE",
    summary: "an EAGLE-1/2 head on the target's last hidden state",
    draft_kv: DraftKv::Pairs,
    carries_hidden_states: true,
    num_steps: 3,
    // Each position takes a row of features, as much memory as a few layers' keys and values.
    pause_window: 64,
    load: lockstep_model_folder::draft::eagle,
};

/// EAGLE-3: a head that reads the hidden states of three layers (Li et al., arXiv:2503.01840).
pub const EAGLE3: WithModel = WithModel {
    name: "EAGLE3",
    summary: "an EAGLE-3 head on hidden states of three of the target's layers",
    load: lockstep_model_folder::draft::eagle3,
    ..EAGLE
};

/// A small model with the target's tokenizer (Leviathan et al., arXiv:2211.17192).
pub const STANDALONE: WithModel = WithModel {
    name: "STANDALONE",
    summary: "a smaller model with the same tokenizer",
    draft_kv: DraftKv::Tokens,
    carries_hidden_states: false,
    num_steps: 4,
    // Its tokens are known without a window; the limit bounds the pass that catches up.
    pause_window: 256,
    load: lockstep_model_folder::draft::whole_model,
};

impl Algorithm for WithModel {
    fn name(&self) -> &str {
        self.name
    }

    fn summary(&self) -> &str {
        self.summary
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_draft_model: true,
            draft_kv: self.draft_kv,
            supports_tree: true,
            supports_target_verify_for_draft: true,
            draft_probabilities: true,
            carries_hidden_states: self.carries_hidden_states,
            adaptive: true,
            drafts_from_texts: false,
        }
    }

    fn default_shape(&self) -> DraftShape {
        DraftShape {
            num_steps: self.num_steps,
            topk: 1,
            num_draft_tokens: self.num_steps + 1,
        }
    }

    fn pause_window(&self) -> usize {
        self.pause_window
    }

    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        let path = path.ok_or_else(|| {
            ConfigError::conflict(
                format!("--speculative-algorithm {}", self.name),
                "no --speculative-draft-model-path",
                format!("it drafts with {}", self.summary),
                "Name its folder with --speculative-draft-model-path",
            )
        })?;
        (self.load)(path, target).map(Some)
    }
}

impl<B: Backend + 'static> DrafterFactory<B> for WithModel {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(match build.draft()?.kind {
            DraftKind::Model => Box::new(StandaloneDrafter::load(build)?),
            DraftKind::Eagle | DraftKind::Eagle3 { .. } => Box::new(EagleDrafter::load(build)?),
        })
    }
}
