//! BLOCK: a draft model drafts a whole block of tokens in one pass.
//!
//! This crate is an example to copy; the README next to it walks through the parts.
//! This module holds the algorithm as configuration sees it. `drafter` holds its work
//! on the device, and `guesses` turns guesses into a block. `phrases` holds a second
//! algorithm with an option of its own and with texts to draft from. `streaks` holds a
//! policy that adapts the depth of either algorithm.

#![forbid(unsafe_code)]

mod drafter;
mod guesses;
mod phrases;
mod streaks;

use std::path::Path;

use lockstep_backend::Backend;
use lockstep_speculation::{Build, DraftError, Drafter, DrafterFactory};
use lockstep_types::{
    Algorithm, Capabilities, ConfigError, DraftKv, DraftModel, DraftShape, ModelConfig,
};

pub use phrases::Phrases;
pub use streaks::Streaks;

/// Number of guesses in a pass beyond the tokens that the target verifies. These
/// guesses have one more round to become right.
const LOOKAHEAD: usize = 3;

/// The algorithm drafts with a small model that has the target's tokenizer. Like DFLASH
/// it takes one pass per round at any depth. The pass runs over the last known token
/// and a block of guesses, and the model's output after these tokens is the block (a
/// Jacobi iteration, as in Santilli et al., arXiv:2305.10427). The first token is
/// always the model's own. A later token is the model's own if all guesses before it
/// were right.
#[derive(Debug, Clone, Copy)]
pub struct Block;

impl Algorithm for Block {
    fn name(&self) -> &str {
        "BLOCK"
    }

    fn summary(&self) -> &str {
        "a block of tokens from one pass of a smaller model with the same tokenizer"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_draft_model: true,
            draft_in_target: false,
            draft_kv: DraftKv::Tokens,
            supports_tree: false,
            // A pass has several tokens per request.
            supports_target_verify_for_draft: true,
            draft_probabilities: false,
            carries_hidden_states: false,
            adaptive: true,
            drafts_from_texts: false,
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
        let path = path.ok_or_else(|| {
            ConfigError::conflict(
                "--speculative-algorithm BLOCK",
                "no --speculative-draft-model-path",
                "it drafts with a smaller model",
                "Name its folder with --speculative-draft-model-path",
            )
        })?;
        lockstep_model_folder::draft::whole_model(path, target).map(Some)
    }

    /// Returns the tokens that the target verifies, or the width of the draft model's
    /// passes, which are wider. The reserve of cache positions follows the larger
    /// number.
    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        if is_draft {
            draft_tokens + LOOKAHEAD
        } else {
            draft_tokens
        }
    }
}

impl<B: Backend + 'static> DrafterFactory<B> for Block {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        let tokens = build.speculation.num_draft_tokens;
        let width = self.tokens_per_request_for_verify(tokens, true);
        Ok(Box::new(drafter::BlockDrafter::load(build, width)?))
    }
}
