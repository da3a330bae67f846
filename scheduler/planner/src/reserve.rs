//! KV slots that one decode step may write, and what is kept for it.
//!
//! One module for all who need it: page allocator, width of a
//! request-to-token row, admission and verification.
//!
//! With `W` ([`ReserveConfig::alloc_len_per_decode`]) the most slots that one
//! step writes for one request, and `L` ([`ReserveConfig::commit_lag`]) the
//! most tokens that an unseen result can have committed, a step launched while
//! one result is unseen may write `[committed, committed + L + W)`:
//! the host knows `committed`, the device stands at most `L` further, and the
//! step writes `W` slots from there. So `W + L` is exactly what must be
//! allocated at launch. SGLang reserves `2·W` instead (its
//! `alloc_reserve_per_decode`), which is enough since `L ≤ W`, and far too much
//! for paged trees. **The planner reserves the exact form**, and the tests of
//! this module prove by exhaustive simulation that it is both enough and tight.

use crate::PlannerError;

/// The largest shape over all speculation tiers.
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
    /// No speculation: one token per step.
    pub const fn none() -> Self {
        Self {
            steps: 0,
            topk: 1,
            draft_tokens: 0,
        }
    }

    /// Whether any tier speculates.
    pub const fn speculates(&self) -> bool {
        self.draft_tokens > 0
    }

    /// `W`: the most KV slots that one decode step writes for one request.
    ///
    /// A tree's branches start on pages of their own when pages hold more than
    /// one token: each branch repeats the partial last page of its prefix.
    pub const fn alloc_len_per_decode(&self, page_size: u32) -> u32 {
        if !self.speculates() {
            return 1;
        }
        let tree = if page_size > 1 && self.topk > 1 {
            (page_size - 1 + self.steps).div_ceil(page_size) * page_size * self.topk
        } else {
            self.steps * self.topk
        };
        if tree > self.draft_tokens {
            tree
        } else {
            self.draft_tokens
        }
    }

    /// The most tokens that one step commits: all drafts on the longest path
    /// and the bonus token.
    pub const fn max_commit_per_decode(&self) -> u32 {
        if !self.speculates() {
            return 1;
        }
        let path = self.steps + 1;
        if path < self.draft_tokens {
            path
        } else {
            self.draft_tokens
        }
    }

    /// `L`: how far the device may be ahead of the host's committed count when
    /// a step is planned.
    pub const fn commit_lag(&self, overlap: bool) -> u32 {
        if overlap {
            self.max_commit_per_decode()
        } else {
            0
        }
    }

    /// The double-buffered reserve of SGLang: `2·W` under overlap.
    pub const fn alloc_reserve_per_decode(&self, page_size: u32, overlap: bool) -> u32 {
        self.alloc_len_per_decode(page_size) * if overlap { 2 } else { 1 }
    }

    /// `W + L`, what must be allocated beyond `committed` when a step starts.
    pub const fn exact_reserve_per_decode(&self, page_size: u32, overlap: bool) -> u32 {
        self.alloc_len_per_decode(page_size) + self.commit_lag(overlap)
    }

    /// Columns of a request-to-token row beyond the context length.
    pub const fn req_to_token_extra_context_len(&self, page_size: u32, overlap: bool) -> u32 {
        let extra = 4 + self.draft_tokens;
        let mut reserve = self.alloc_reserve_per_decode(page_size, overlap);
        if page_size > 1 && self.speculates() {
            reserve += page_size - 1;
        }
        if extra > reserve { extra } else { reserve }
    }

    /// Checks that the shape is possible.
    ///
    /// # Errors
    /// [`PlannerError::Config`] names the remedy.
    pub fn validate(&self) -> Result<(), PlannerError> {
        let wrong = |message: &str| {
            Err(PlannerError::Config {
                field: "reserve",
                message: message.into(),
            })
        };
        if self.topk == 0 {
            return wrong("topk must be at least 1 (--speculative-eagle-topk)");
        }
        if self.speculates() != (self.steps > 0) {
            return wrong(
                "steps and draft_tokens are both 0 or both positive \
                 (--speculative-num-steps, --speculative-num-draft-tokens)",
            );
        }
        if self.steps > 1 << 10 || self.topk > 1 << 10 || self.draft_tokens > 1 << 16 {
            return wrong("steps and topk are at most 1024, draft_tokens at most 65536");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
