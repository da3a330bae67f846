//! Sizes that buffers are allocated for.

use lockstep_backend::Batch;
use lockstep_types::StepLimits;

use crate::ModelError;

/// Sizes that buffers are allocated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardLimits {
    /// Tokens of one pass, over all requests.
    pub max_tokens: usize,
    /// Positions the rotary table covers.
    pub positions: usize,
    /// Rows of logits computed and brought to the host at a time; bounds the
    /// memory of passes that want many.
    pub logit_block_rows: usize,
}

/// Host memory for one block of logits.
const LOGIT_BLOCK_BYTES: usize = 64 << 20;

impl ForwardLimits {
    /// Of an engine's steps, for a target of `vocab` tokens.
    pub fn of_steps(step: &StepLimits, vocab: usize) -> Self {
        Self {
            max_tokens: step.tokens,
            positions: step.positions,
            logit_block_rows: (LOGIT_BLOCK_BYTES / (4 * vocab.max(1))).clamp(16, 256),
        }
    }

    /// Of its drafter's passes.
    pub fn of_drafts(step: &StepLimits, vocab: usize) -> Self {
        Self {
            max_tokens: step.draft_tokens(),
            ..Self::of_steps(step, vocab)
        }
    }

    /// At least one token, and blocks no larger than a pass.
    pub(crate) fn sensible(self) -> Self {
        let max_tokens = self.max_tokens.max(1);
        Self {
            max_tokens,
            logit_block_rows: self.logit_block_rows.clamp(1, max_tokens),
            ..self
        }
    }

    /// Whether the buffers hold `batch`.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`].
    pub(crate) fn check(&self, batch: &Batch<'_>) -> Result<(), ModelError> {
        fits("tokens", batch.tokens.len(), self.max_tokens)?;
        let positions = batch.positions.iter().max().map_or(0, |p| *p as usize + 1);
        fits("positions", positions, self.positions)
    }
}

/// Whether `found` is at most `limit`.
///
/// # Errors
/// [`ModelError::TooLarge`].
pub(crate) fn fits(what: &'static str, found: usize, limit: usize) -> Result<(), ModelError> {
    if found > limit {
        return Err(ModelError::TooLarge { what, found, limit });
    }
    Ok(())
}
