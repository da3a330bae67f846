//! KV slots that one decode step may write, and the reserve that is kept for it.
//!
//! The page allocator, admission, the width of a request-to-token row and memory sizing all use
//! this module.
//!
//! Let `W` ([`ReserveConfig::alloc_len_per_decode`]) be the most slots that one step writes for
//! one request. Let `L` ([`ReserveConfig::commit_lag`]) be the most tokens that an unseen
//! result can have committed. A step launched while one result is unseen may write
//! `[committed, committed + L + W)`: the host knows `committed`, the device stands at most `L`
//! further, and the step writes `W` slots from there. So `W + L` is exactly the number of slots
//! to allocate at launch, and an allocation never shrinks while steps are in flight.
//!
//! A step's nodes lie in consecutive slots here, whatever the page size. Drafting writes at
//! most `steps · topk` slots and verification `draft_tokens`, both from the last known token
//! on. After the step the accepted path is moved to the front. So `W` is
//! `max(steps · topk, draft_tokens)`. SGLang starts every branch of a tree on a page of its own
//! and reserves twice the result; [`paged`] has its formulae. For page 64, topk 4 and steps 3
//! those keep 1,024 slots, where `W + L` is 16.
//!
//! **A text may end anywhere up to the context length, and the step that is in flight then has
//! moved its slot on.** Under overlap the last planned step starts with two tokens to go. Its
//! slot stands at most at `context - 3 + L`, and the step writes up to `context - 3 + L + W`.
//! So a row of the request-to-token table is wider than the context by
//! [`ReserveConfig::req_to_token_extra_context_len`], which is at least `W + L`.

pub mod paged;

/// Shape of the largest speculation, over all tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveConfig {
    /// Draft steps; 0 without speculation.
    pub steps: u32,
    /// Branches per draft step; 1 for chains and without speculation.
    pub topk: u32,
    /// Tokens in a verify pass; 0 without speculation.
    pub draft_tokens: u32,
}

impl Default for ReserveConfig {
    fn default() -> Self {
        Self::none()
    }
}

impl ReserveConfig {
    /// Returns the shape without speculation: one token per step.
    pub const fn none() -> Self {
        Self {
            steps: 0,
            topk: 1,
            draft_tokens: 0,
        }
    }

    /// Returns true if any tier speculates.
    pub const fn speculates(&self) -> bool {
        self.draft_tokens > 0
    }

    /// Returns `W`: the most KV slots that one decode step writes for one request.
    pub const fn alloc_len_per_decode(&self) -> u32 {
        self.alloc_len_at(self.steps)
    }

    /// Returns `W` of a row that drafts at most `depth` steps. At depth 0 the row writes one
    /// slot. At any other depth it may write as much as at the largest: a drafter of blocks
    /// writes its whole block, however little of the block was asked for.
    pub const fn alloc_len_at(&self, depth: u32) -> u32 {
        if !self.drafts_at(depth) {
            return 1;
        }
        max(self.steps * self.topk, self.draft_tokens)
    }

    /// Returns the most tokens that one step commits: all drafts on the longest path and the
    /// token after them.
    pub const fn max_commit_per_decode(&self) -> u32 {
        self.max_commit_at(self.steps)
    }

    /// Returns the most tokens that one step commits for a row of at most `depth` draft steps.
    pub const fn max_commit_at(&self, depth: u32) -> u32 {
        if !self.drafts_at(depth) {
            return 1;
        }
        min(min(depth, self.steps) + 1, self.draft_tokens)
    }

    /// Returns how many leading tokens the next pass of a draft model takes in, of those that
    /// it has not read yet. For an accepted chain it is 1, the last token. The nodes of a tree
    /// do not lie in the cells of their positions, so for a tree it is all that a step commits
    /// but one.
    pub const fn left_by_draft_model(&self) -> u32 {
        match self.topk {
            0 | 1 => 1,
            _ => max(self.max_commit_per_decode().saturating_sub(1), 1),
        }
    }

    /// Returns `L`: the most tokens by which the device is ahead of the host's committed count
    /// when a step is planned.
    pub const fn commit_lag(&self, overlap: bool) -> u32 {
        self.commit_lag_at(self.steps, overlap)
    }

    /// Returns `L` of a request that drafts at most `depth` steps.
    pub const fn commit_lag_at(&self, depth: u32, overlap: bool) -> u32 {
        if overlap {
            self.max_commit_at(depth)
        } else {
            0
        }
    }

    /// Returns `W + L`, the slots to allocate beyond `committed` when a step starts.
    pub const fn alloc_reserve_per_decode(&self, overlap: bool) -> u32 {
        self.alloc_len_per_decode() + self.commit_lag(overlap)
    }

    /// Returns the most KV tokens that a text of `tokens` tokens needs up to its end, when it
    /// runs alone and drafts at most `depth` steps.
    ///
    /// Without overlap the last step starts with one token to go, and writes the KV of the
    /// token before that one. With overlap it starts with two to go, for the next to last may
    /// be in flight then.
    pub const fn tokens_for_text(&self, tokens: u64, depth: u32, overlap: bool) -> u64 {
        let lag = self.commit_lag_at(depth, overlap).saturating_sub(1);
        let beyond = (self.alloc_len_at(depth) + lag) as u64;
        (tokens + beyond).saturating_sub(2)
    }

    /// Returns the positions of a request-to-token row beyond the context length.
    pub const fn req_to_token_extra_context_len(&self, overlap: bool) -> u32 {
        max(
            4 + self.draft_tokens,
            self.alloc_reserve_per_decode(overlap),
        )
    }

    /// Returns the fault of an invalid shape, with the options to change; `None` if it is
    /// valid.
    pub const fn fault(&self) -> Option<&'static str> {
        if self.topk == 0 {
            return Some("topk must be at least 1 (--speculative-eagle-topk)");
        }
        if self.speculates() != (self.steps > 0) {
            return Some(
                "steps and draft_tokens are both 0 or both positive \
                 (--speculative-num-steps, --speculative-num-draft-tokens)",
            );
        }
        if self.steps > 1 << 10 || self.topk > 1 << 10 || self.draft_tokens > 1 << 16 {
            return Some("steps and topk are at most 1024, draft_tokens at most 65536");
        }
        None
    }

    const fn drafts_at(&self, depth: u32) -> bool {
        self.speculates() && depth > 0
    }
}

// `Ord::max` is no const function.
const fn max(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

const fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests;
