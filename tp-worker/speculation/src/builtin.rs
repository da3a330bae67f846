//! The algorithms that every program has.

use std::path::Path;

use lockstep_backend::Backend;
use lockstep_types::{
    Algorithm, Capabilities, ConfigError, DraftKind, DraftKv, DraftModel, DraftShape, ModelConfig,
    SpeculationConfig,
};

use crate::{
    Build, DflashDrafter, DraftError, Drafter, DrafterFactory, DrafterRegistry, EagleDrafter,
    JumpForward, Ngram, StandaloneDrafter,
};

impl<B: Backend + 'static> DrafterRegistry<B> {
    /// Makes a registry of EAGLE, EAGLE3, NEXTN, DFLASH, STANDALONE, NGRAM and JUMP_FORWARD.
    pub fn builtin() -> Self {
        Self::empty()
            .with(EAGLE)
            .with(EAGLE3)
            .with(NEXTN)
            .with(DFLASH)
            .with(STANDALONE)
            .with(Ngram::default())
            .with(JumpForward)
    }
}

/// An algorithm that drafts with a model, in a folder of its own or in the target's.
#[derive(Debug, Clone, Copy)]
pub struct WithModel {
    name: &'static str,
    summary: &'static str,
    draft_kv: DraftKv,
    carries_hidden_states: bool,
    supports_tree: bool,
    num_steps: usize,
    pause_window: usize,
    load: Load,
}

/// Readers of draft models, by the place of their files.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// In a folder of its own.
    Folder(fn(&Path, &ModelConfig) -> Result<DraftModel, ConfigError>),
    /// In the target's folder, which may be named.
    Target(fn(Option<&Path>, &ModelConfig) -> Result<DraftModel, ConfigError>),
}

/// EAGLE-1/2: a head that reads the target's last hidden state (Li et al., arXiv:2401.15077,
/// arXiv:2406.16858).
pub const EAGLE: WithModel = WithModel {
    name: "EAGLE",
    summary: "an EAGLE-1/2 head on the target's last hidden state",
    draft_kv: DraftKv::Pairs,
    carries_hidden_states: true,
    supports_tree: true,
    num_steps: 3,
    // Each position takes a row of features, as much memory as a few layers' keys and values.
    pause_window: 64,
    load: Load::Folder(lockstep_model_folder::draft::eagle),
};

/// EAGLE-3: a head that reads the hidden states of three layers (Li et al., arXiv:2503.01840).
pub const EAGLE3: WithModel = WithModel {
    name: "EAGLE3",
    summary: "an EAGLE-3 head on hidden states of three of the target's layers",
    load: Load::Folder(lockstep_model_folder::draft::eagle3),
    ..EAGLE
};

/// The target's own draft layers (multi-token prediction, DeepSeek-V3, arXiv:2412.19437). Several
/// draft in turn. More drafts than layers run the last layer again, over its own output and cache.
pub const NEXTN: WithModel = WithModel {
    name: "NEXTN",
    summary: "the model's own draft layer, which lies in its folder",
    load: Load::Target(lockstep_model_folder::draft::nextn),
    ..EAGLE
};

/// DFlash: a model that fills a block of masks in one pass, over keys and values made of hidden
/// states of the target (Chen et al., arXiv:2602.06036).
pub const DFLASH: WithModel = WithModel {
    name: "DFLASH",
    summary: "a DFlash model, which fills a block of tokens in one pass",
    draft_kv: DraftKv::Tokens,
    supports_tree: false,
    // Of the usual block of 16, the known token included; a model's own block counts.
    num_steps: 15,
    load: Load::Folder(lockstep_model_folder::draft::dflash),
    ..EAGLE
};

/// A small model with the target's tokenizer (Leviathan et al., arXiv:2211.17192).
pub const STANDALONE: WithModel = WithModel {
    name: "STANDALONE",
    summary: "a smaller model with the same tokenizer",
    draft_kv: DraftKv::Tokens,
    carries_hidden_states: false,
    supports_tree: true,
    num_steps: 4,
    // Its tokens are known without a window; the limit bounds the pass that catches up.
    pause_window: 256,
    load: Load::Folder(lockstep_model_folder::draft::whole_model),
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
            draft_in_target: matches!(self.load, Load::Target(_)),
            draft_kv: self.draft_kv,
            supports_tree: self.supports_tree,
            supports_target_verify_for_draft: true,
            draft_probabilities: true,
            carries_hidden_states: self.carries_hidden_states,
            adaptive: true,
            drafts_from_texts: false,
        }
    }

    fn default_shape(&self) -> DraftShape {
        DraftShape::chain(self.num_steps)
    }

    fn default_shape_with(&self, draft: &DraftModel) -> DraftShape {
        let steps = match draft.layers_in_turn() {
            1 => self.num_steps,
            // Each was trained for a draft of its own.
            layers => layers,
        };
        DraftShape::chain(draft.most_steps().unwrap_or(steps))
    }

    fn pause_window(&self) -> usize {
        self.pause_window
    }

    fn validate(
        &self,
        speculation: &SpeculationConfig,
        _target: &ModelConfig,
    ) -> Result<(), ConfigError> {
        let most = speculation.draft.as_ref().and_then(DraftModel::most_steps);
        match most.filter(|most| *most < speculation.num_steps) {
            None => Ok(()),
            Some(most) => Err(ConfigError::conflict(
                format!("--speculative-algorithm {}", self.name),
                format!("{} draft steps", speculation.num_steps),
                format!(
                    "the draft model fills blocks of {} tokens, of which one is known",
                    most + 1
                ),
                format!(
                    "Give --speculative-num-steps {most} or less, and no deeper candidate_steps"
                ),
            )),
        }
    }

    /// Returns the tokens that the target verifies, or those of a block, which the draft model
    /// writes whole at any depth.
    fn max_draft_tokens(&self, speculation: &SpeculationConfig) -> usize {
        let steps = speculation.draft.as_ref().and_then(DraftModel::most_steps);
        speculation
            .num_draft_tokens
            .max(steps.map_or(0, |steps| steps + 1))
    }

    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        let load = match self.load {
            Load::Target(load) => return load(path, target).map(Some),
            Load::Folder(load) => load,
        };
        let path = path.ok_or_else(|| {
            ConfigError::conflict(
                format!("--speculative-algorithm {}", self.name),
                "no --speculative-draft-model-path",
                format!("it drafts with {}", self.summary),
                "Name its folder with --speculative-draft-model-path",
            )
        })?;
        load(path, target).map(Some)
    }
}

impl<B: Backend + 'static> DrafterFactory<B> for WithModel {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(match build.draft()?.kind {
            DraftKind::Model => Box::new(StandaloneDrafter::load(build)?),
            DraftKind::Eagle | DraftKind::Eagle3 { .. } | DraftKind::Nextn { .. } => {
                Box::new(EagleDrafter::load(build)?)
            }
            DraftKind::Dflash(_) => Box::new(DflashDrafter::load(build)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The draft of the fixtures, whose blocks have six tokens.
    fn speculation(num_steps: usize) -> (SpeculationConfig, ModelConfig) {
        let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let target = lockstep_model_folder::load(&fixtures.join("architectures/qwen3"));
        let target = target.expect("a served model");
        let draft = DFLASH.load_draft(Some(&fixtures.join("drafts/dflash")), &target);
        let speculation = SpeculationConfig {
            draft: draft.expect("a DFlash model"),
            num_steps,
            num_draft_tokens: num_steps + 1,
            ..SpeculationConfig::none()
        };
        (speculation, target)
    }

    #[test]
    fn a_block_bounds_the_depth_and_is_written_whole() {
        let (shallow, target) = speculation(2);
        let draft = shallow.draft.as_ref().expect("a draft");
        assert_eq!(DFLASH.default_shape_with(draft), DraftShape::chain(5));
        assert_eq!(DFLASH.max_draft_tokens(&shallow), 6);
        assert!(DFLASH.validate(&shallow, &target).is_ok());
        assert!(DFLASH.validate(&speculation(5).0, &target).is_ok());
        let (deep, _) = speculation(6);
        assert_eq!(DFLASH.max_draft_tokens(&deep), 7);
        let error = DFLASH.validate(&deep, &target).expect_err("too deep");
        let error = error.to_string();
        for part in [
            "DFLASH",
            "6 draft steps",
            "blocks of 6",
            "--speculative-num-steps 5",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
