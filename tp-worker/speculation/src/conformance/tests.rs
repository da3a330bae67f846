use lockstep_types::{Capabilities, ConfigError, DraftModel, DraftShape};

use super::*;

/// An algorithm without a draft model, or what it says that contradicts that or itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Sound,
    SmallLetters,
    NoSummary,
    NoStep,
    LongChain,
    Branches,
    NeedsAModel,
    KeepsWithoutModel,
    PassesWithoutModel,
    VerifiesFewer,
    WiderDrafts,
    LoadsOne,
}

impl Algorithm for Says {
    fn name(&self) -> &str {
        match self {
            Self::SmallLetters => "says",
            _ => "SAYS",
        }
    }
    fn summary(&self) -> &str {
        match self {
            Self::NoSummary => "",
            _ => "nothing is drafted",
        }
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_draft_model: *self == Self::NeedsAModel,
            draft_kv: match self {
                Self::KeepsWithoutModel => DraftKv::Tokens,
                _ => DraftKv::None,
            },
            supports_target_verify_for_draft: *self == Self::PassesWithoutModel,
            ..Capabilities::default()
        }
    }
    fn default_shape(&self) -> DraftShape {
        let (num_steps, topk, num_draft_tokens) = match self {
            Self::NoStep => (0, 1, 1),
            Self::LongChain => (3, 1, 5),
            Self::Branches => (3, 2, 5),
            _ => (3, 1, 4),
        };
        DraftShape {
            num_steps,
            topk,
            num_draft_tokens,
        }
    }
    fn load_draft(
        &self,
        _: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        let draft = DraftModel {
            model: target.clone(),
            kind: lockstep_types::DraftKind::Model,
            own_embedding: true,
            own_head: true,
        };
        let loads = [Self::LoadsOne, Self::NeedsAModel].contains(self);
        Ok(loads.then_some(draft))
    }
    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        match (self, is_draft) {
            (Self::VerifiesFewer, false) => draft_tokens - 1,
            (Self::WiderDrafts, true) => draft_tokens + 1,
            _ => draft_tokens,
        }
    }
}

#[test]
fn answers_that_contradict_each_other_are_named() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    let folder = root.expect("the models").join("models/lockstep-demo-7m");
    let target = lockstep_model_folder::load(&folder).expect("the demo model");
    for (says, rules) in [
        (Says::Sound, &[][..]),
        (Says::SmallLetters, &["in capitals"]),
        (Says::NoSummary, &["a summary"]),
        (Says::NoStep, &["has a step"]),
        (Says::LongChain, &["a default chain"]),
        (Says::Branches, &["needs supports_tree"]),
        (Says::NeedsAModel, &["can't be loaded"]),
        (Says::KeepsWithoutModel, &["keys and values need"]),
        (
            Says::PassesWithoutModel,
            &["passes of the draft model need"],
        ),
        (Says::VerifiesFewer, &["verifies all drafted tokens"]),
        (Says::WiderDrafts, &["a width of its own"]),
        (Says::LoadsOne, &["nothing is loaded"]),
    ] {
        let wrong = answers(&says, &target, Some(&folder));
        assert_eq!(wrong.len(), rules.len(), "{says:?}: {wrong:?}");
        for (wrong, rule) in wrong.iter().zip(rules) {
            assert!(wrong.contains(rule), "{says:?}: {wrong}");
        }
    }
}
