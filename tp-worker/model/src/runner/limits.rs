//! Sizes that buffers are allocated for.

use lockstep_backend::{Batch, ChainLimits, ChoiceLimits, InputLimits};
use lockstep_types::{ModelConfig, StepLimits};

use crate::ModelError;

/// Sizes that buffers are allocated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardLimits {
    /// Most tokens of one pass, over all requests of a DP rank.
    pub max_tokens: usize,
    /// Most requests of one pass.
    pub requests: usize,
    /// Most positions of a request. The rotary table covers them.
    pub positions: usize,
    /// Groups of layers that a batch has cells and page tables for.
    pub groups: usize,
    /// Number of tokens in a page of the cache.
    pub page_size: usize,
    /// Most new tokens of a request with a tree mask; 0 where no row has a mask.
    pub tree_nodes: usize,
    /// Most nodes that all rows together replay onto states; 0 for a model without recurrent
    /// layers.
    pub replays: usize,
    /// Rows of logits computed and brought to the host at a time. The bound limits the memory
    /// of passes that want many rows.
    pub logit_block_rows: usize,
    /// Most tokens that a request takes of a pass, where a device chooses tokens; 0 where the
    /// host chooses all.
    pub max_commit: usize,
}

/// Bytes of host memory for one block of logits.
const LOGIT_BLOCK_BYTES: usize = 64 << 20;

impl ForwardLimits {
    /// Limits of an engine's steps, for the target `model`.
    pub fn of_steps(step: &StepLimits, page_size: usize, model: &ModelConfig) -> Self {
        let verified = step.requests.saturating_mul(step.verified);
        Self {
            groups: model.kv_groups().len().max(1),
            replays: if model.has_states() { verified } else { 0 },
            ..Self::of_one_group(step, page_size, model.vocab_size)
        }
    }

    /// Limits of an engine's steps over one group of layers, for a target of `vocab` tokens.
    fn of_one_group(step: &StepLimits, page_size: usize, vocab: usize) -> Self {
        Self {
            max_tokens: step.tokens,
            requests: step.requests,
            positions: step.positions,
            groups: 1,
            page_size,
            tree_nodes: if step.branches { step.verified } else { 0 },
            replays: 0,
            logit_block_rows: Self::block_rows(vocab),
            max_commit: step.max_commit,
        }
    }

    /// Number of rows of a block of logits, for a target of `vocab` tokens.
    pub fn block_rows(vocab: usize) -> usize {
        (LOGIT_BLOCK_BYTES / (4 * vocab.max(1))).clamp(16, 256)
    }

    /// Limits of the passes of an engine's drafter, for a target of `vocab` tokens. All caches
    /// of a draft lie under the pages of the target's first group.
    pub fn of_drafts(step: &StepLimits, page_size: usize, vocab: usize) -> Self {
        Self {
            max_tokens: step.draft_tokens(),
            tree_nodes: if step.branches { step.draft_nodes } else { 0 },
            max_commit: 0,
            ..Self::of_one_group(step, page_size, vocab)
        }
    }

    /// Returns limits of at least one token, in pages of at least one token, with blocks no
    /// larger than a pass.
    pub(crate) fn sensible(self) -> Self {
        let max_tokens = self.max_tokens.max(1);
        Self {
            max_tokens,
            page_size: self.page_size.max(1),
            logit_block_rows: self.logit_block_rows.clamp(1, max_tokens),
            ..self
        }
    }

    /// Most rows of logits that `dp_size` DP ranks together may want of a pass.
    pub(crate) fn wanted_rows(&self, dp_size: usize) -> usize {
        self.max_tokens.saturating_mul(dp_size)
    }

    /// Returns the limits for a device that `chooses` tokens, or leaves the choice to the
    /// host.
    pub(crate) fn of_device(self, chooses: bool) -> Self {
        Self {
            max_commit: if chooses { self.max_commit } else { 0 },
            ..self
        }
    }

    /// Limits of a pass's staged inputs.
    pub(crate) fn inputs(&self) -> InputLimits {
        let mut choices = ChoiceLimits::default();
        if self.max_commit > 0 {
            choices = ChoiceLimits {
                requests: self.requests,
                rows: self.max_tokens,
                parents: self
                    .requests
                    .saturating_mul(self.tree_nodes.saturating_sub(1)),
                most: self.max_commit,
            };
        }
        let pages = self.positions.div_ceil(self.page_size);
        let pages = self.requests.saturating_mul(pages);
        let mut chain = ChainLimits::default();
        // Where drafts are verified, a device may draft them.
        if self.max_commit > 1 {
            chain = ChainLimits {
                chains: self.requests,
                tokens: self.requests.saturating_mul(self.max_commit),
                pages,
                trees: if self.tree_nodes > 0 {
                    self.requests
                } else {
                    0
                },
            };
        }
        let mask_words = self.tree_nodes * self.tree_nodes.div_ceil(64);
        InputLimits {
            tokens: self.max_tokens,
            requests: self.requests,
            groups: self.groups,
            pages,
            page_size: self.page_size,
            mask_words: self.requests.saturating_mul(mask_words),
            replays: self.replays,
            choices,
            chain,
        }
    }

    /// Checks that the buffers hold `batch`.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`].
    pub(crate) fn check(&self, batch: &Batch<'_>) -> Result<(), ModelError> {
        fits("tokens", batch.tokens.len(), self.max_tokens)?;
        fits("wanted logits", batch.logit_tokens.len(), self.max_tokens)?;
        let positions = batch.positions.iter().max().map_or(0, |p| *p as usize + 1);
        fits("positions", positions, self.positions)?;
        let (room, found) = (self.inputs(), InputLimits::of(batch, self.page_size));
        fits("requests", found.requests, room.requests)?;
        fits("pages", found.pages, room.pages)?;
        fits("words of masks", found.mask_words, room.mask_words)?;
        fits("replayed nodes", found.replays, room.replays)?;
        let (chain, chains) = (found.chain, room.chain);
        let (found, room) = (found.choices, room.choices);
        fits("requests to choose for", found.requests, room.requests)?;
        fits("parents of drafts", found.parents, room.parents)?;
        fits("tokens of chains", chain.tokens, chains.tokens)
    }
}

/// Checks that `found` is at most `limit`.
///
/// # Errors
/// [`ModelError::TooLarge`].
pub(crate) fn fits(what: &'static str, found: usize, limit: usize) -> Result<(), ModelError> {
    if found > limit {
        return Err(ModelError::TooLarge { what, found, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_alone_take_room_for_masks() {
        let mut step = StepLimits {
            requests: 3,
            tokens: 30,
            positions: 20,
            verified: 70,
            max_commit: 4,
            draft_nodes: 10,
            branches: true,
        };
        let words = |step: &StepLimits| {
            [
                ForwardLimits::of_one_group(step, 4, 100),
                ForwardLimits::of_drafts(step, 4, 100),
            ]
            .map(|limits| limits.inputs().mask_words)
        };
        assert_eq!(words(&step), [3 * 70 * 2, 3 * 10]);
        step.branches = false;
        assert_eq!(words(&step), [0, 0]);
    }
}
