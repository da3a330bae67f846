//! The contract between scheduler and worker: plans down, results up.
//!
//! A plan never carries a request's KV length: under overlap the scheduler does not know yet
//! how many tokens the previous step committed. The worker's slot knows that, and the granted
//! pages always cover everything that the step may write.
//!
//! Requests, slots and pages belong to a DP rank, and so does a part of each plan and result.
//! Without data-parallel attention there is one DP rank, number 0.

use std::fmt;

use lockstep_adaptive::DepthRange;

use crate::{ConstraintWork, generation::GenerationParams, sampling::TokenLogprob};

mod keep;

pub use keep::StateKeep;

/// One forward pass of all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepPlan {
    /// Consecutive number, from 1.
    pub step: u64,
    /// Draft steps of the decode rows, as far as their slots allow; 0 = no drafts.
    pub draft_steps: u32,
    /// Depths that an operator allows, for the decision that the ranks take in this step.
    pub depth_range: DepthRange,
    /// Part of each DP rank; a DP rank without work has an empty part.
    pub parts: Vec<PlanPart>,
}

/// One DP rank's part of a pass. Effects happen in field order: `closes`, `opens`,
/// then `extends` runs as one ragged batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanPart {
    /// Slots that are free from this step on.
    pub closes: Vec<u32>,
    /// Requests that get a slot.
    pub opens: Vec<SlotOpen>,
    /// The rows of the batch, each slot at most once.
    pub extends: Vec<SlotExtend>,
}

/// The most that a DP rank may bring to a step's pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartBounds {
    /// Rows.
    pub requests: u32,
    /// New tokens of all rows, drafts included.
    pub tokens: u32,
    /// New tokens of the longest row.
    pub longest: u32,
}

impl PlanPart {
    /// Returns the part's rows without their pages and kept states.
    fn sizes(&self) -> Self {
        let size = |extend: &SlotExtend| SlotExtend {
            new_pages: Vec::new(),
            keeps: Vec::new(),
            ..*extend
        };
        Self {
            extends: self.extends.iter().map(size).collect(),
            ..Self::default()
        }
    }

    /// Returns the most that the part's rows come to, with at most `drafts` drafts for each
    /// decode row. All ranks know it before anything is drafted.
    pub fn bounds(&self, drafts: u32) -> PartBounds {
        let mut most = PartBounds::default();
        for extend in &self.extends {
            let tokens = match extend.prefill_len {
                0 => 1 + drafts,
                prefill_len => prefill_len,
            };
            most.requests += 1;
            most.tokens = most.tokens.saturating_add(tokens);
            most.longest = most.longest.max(tokens);
        }
        most
    }
}

impl PartBounds {
    /// Returns the smallest bounds that hold both.
    fn most(self, other: Self) -> Self {
        Self {
            requests: self.requests.max(other.requests),
            tokens: self.tokens.max(other.tokens),
            longest: self.longest.max(other.longest),
        }
    }

    /// Returns true if `row` is within these bounds.
    pub fn hold(self, row: Self) -> bool {
        row.requests <= self.requests && row.tokens <= self.tokens && row.longest <= self.longest
    }
}

impl fmt::Display for PartBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests,
            tokens,
            longest,
        } = self;
        write!(
            f,
            "{requests} rows of {tokens} tokens, {longest} in the longest"
        )
    }
}

impl StepPlan {
    /// Returns the plan as the ranks of `dp_rank` need it. Their own part is whole. The other
    /// parts have only rows without pages, which say how large those batches may become.
    #[must_use]
    pub fn for_dp_rank(&self, dp_rank: usize) -> Self {
        let part = |(at, part): (usize, &PlanPart)| match at == dp_rank {
            true => part.clone(),
            false => part.sizes(),
        };
        Self {
            parts: self.parts.iter().enumerate().map(part).collect(),
            ..*self
        }
    }

    /// Returns the most that a DP rank brings to a step in which every row decodes and samples,
    /// with at most `drafts` drafts per row. Returns `None` if there are no rows or one is
    /// another kind of row.
    pub fn decodes(&self, drafts: u32) -> Option<PartBounds> {
        let decodes = |row: &SlotExtend| row.prefill_len == 0 && row.sample;
        if self.rows().next().is_none() || !self.rows().all(decodes) {
            return None;
        }
        let parts = self.parts.iter().map(|part| part.bounds(drafts));
        Some(parts.fold(PartBounds::default(), PartBounds::most))
    }

    /// Returns the rows of all DP ranks.
    pub fn rows(&self) -> impl Iterator<Item = &SlotExtend> + Clone {
        self.parts.iter().flat_map(|part| &part.extends)
    }
}

/// Facts of a request that a worker needs until the request's slot closes.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotOpen {
    /// Index below the `max_running_requests` of its DP rank.
    pub slot: u32,
    /// Prompt; after a retraction also the tokens emitted so far.
    pub token_ids: Vec<u32>,
    /// Length of the prompt: the index in `token_ids` at which the output begins.
    pub prompt_len: u32,
    /// Leading tokens whose KV is in the prefix cache, `< token_ids.len()`.
    pub cached_len: u32,
    /// True if the drafter's KV of these leading tokens is cached, too. If it is not, the
    /// drafter drafts without them, and they are whole pages.
    pub drafted: bool,
    /// Number of the request's live state, into which the slot's rows write; `None` for models
    /// without recurrent layers.
    pub state: Option<u32>,
    /// Number of the cached state at `cached_len` that is copied into the live state before the
    /// slot's first row. `None`: the text begins there, so `cached_len` is 0. Copies are made in
    /// the order of the opens, so one may read what a later one overwrites.
    pub restore: Option<u32>,
    /// Parameters of its generation.
    pub generation: GenerationParams,
}

impl SlotOpen {
    /// Opens a slot for a prompt of which nothing is cached, with the default parameters.
    pub fn new(slot: u32, prompt: Vec<u32>) -> Self {
        Self {
            slot,
            // Prompts stay below the context length, which fits `u32`.
            prompt_len: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
            token_ids: prompt,
            cached_len: 0,
            drafted: true,
            state: None,
            restore: None,
            generation: GenerationParams::default(),
        }
    }
}

/// One row of the ragged batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotExtend {
    /// An open slot.
    pub slot: u32,
    /// Number of known tokens to compute, from the slot's position on. 0 = a decode step from
    /// the token sampled last.
    pub prefill_len: u32,
    /// True if a token is sampled after the last position.
    pub sample: bool,
    /// Pages appended to the slot's page tables before the pass: for each new block of
    /// `page_size` positions in turn, one page of each group of layers. The first extend of a
    /// slot brings the pages of its cached prefix too. Example with two groups: `[3, 9, 4, 8]`
    /// gives pages 3 and 4 of the first group, and pages 9 and 8 of the second.
    pub new_pages: Vec<u32>,
    /// Copies of the live state to write on the way, by ascending positions. A row that does not
    /// pass a position leaves that copy out.
    pub keeps: Vec<StateKeep>,
}

impl SlotExtend {
    /// Returns [`Self::new_pages`] that give a slot pages of the same numbers in each of
    /// `groups` groups of layers.
    pub fn pages_of_all(pages: impl IntoIterator<Item = u32>, groups: usize) -> Vec<u32> {
        let of_all = |page| std::iter::repeat_n(page, groups);
        pages.into_iter().flat_map(of_all).collect()
    }
}

/// Result of one pass, all DP ranks together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepResult {
    /// The plan's number.
    pub step: u64,
    /// By DP rank: one output per sampled or scored row, in the order of the part's rows.
    pub outputs: Vec<Vec<SlotOutput>>,
    /// Time of the pass on the slowest DP rank, see [`RankResult::forward_us`].
    pub forward_us: u64,
    /// Longest time of each stage over the DP ranks.
    pub stages: StageTimes,
    /// See [`RankResult::agreed_depth`].
    pub agreed_depth: Option<u32>,
    /// See [`RankResult::expected_us`].
    pub expected_us: u32,
}

impl StepResult {
    /// Joins the results that the leads of all DP ranks, in their order, brought of one step.
    /// The leads are known to have agreed on the same depth.
    pub fn join(leads: impl IntoIterator<Item = RankResult>) -> Self {
        let mut joined = Self::default();
        for lead in leads {
            joined.step = lead.step;
            joined.outputs.push(lead.outputs);
            joined.forward_us = joined.forward_us.max(lead.forward_us);
            joined.stages = joined.stages.max(lead.stages);
            joined.agreed_depth = lead.agreed_depth;
            joined.expected_us = lead.expected_us;
        }
        joined
    }
}

/// Result of one pass on one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankResult {
    /// The plan's number.
    pub step: u64,
    /// Digests by which ranks are compared.
    pub digests: StepDigests,
    /// One output per sampled or scored row, in the order of the DP rank's part; empty except
    /// on the lead of the DP rank.
    pub outputs: Vec<SlotOutput>,
    /// Time from taking the plan to knowing its tokens, microseconds.
    pub forward_us: u64,
    /// Stages of that time and of the time after it.
    pub stages: StageTimes,
    /// Draft steps that the ranks have agreed on for the step [`LAG`](lockstep_adaptive::LAG)
    /// after this one; `None` = they decided nothing, so the agreed depth stays.
    pub agreed_depth: Option<u32>,
    /// Expected time of that step by the policy that decided its depth, microseconds; 0 if the
    /// policy does not say.
    pub expected_us: u32,
    /// Work for constraints since the last step; none except on the lead of the DP rank.
    pub constraints: ConstraintWork,
}

/// Time of a step by stage, in microseconds. All stages are zero on a rank that waits in its
/// pass for the drafts of another rank's device: it can't tell drafting and pass apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Drafting, over all draft steps.
    pub draft_us: u32,
    /// The pass, up to its tokens.
    pub verify_us: u32,
    /// Time of the drafter after the pass, before the result was sent.
    pub extend_us: u32,
}

impl StageTimes {
    /// Counts `us` of the pass as drafting, for a device that drafts and verifies without a
    /// pause: the host waited for both together.
    pub fn count_as_drafting(&mut self, us: u32) {
        let us = us.min(self.verify_us);
        self.verify_us -= us;
        self.draft_us = self.draft_us.saturating_add(us);
    }

    /// The longer time of each stage.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            draft_us: self.draft_us.max(other.draft_us),
            verify_us: self.verify_us.max(other.verify_us),
            extend_us: self.extend_us.max(other.extend_us),
        }
    }
}

/// Rolling digests over all steps so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepDigests {
    /// Digest of the facts that the ranks of one DP rank share: plans, drafts and tokens.
    pub tensor: u64,
    /// Digest of the facts that all ranks share, whatever their requests: numbers and draft
    /// steps of the steps, and sizes and collectives of their passes.
    pub world: u64,
}

/// A difference between the digests of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Name of the digest, for people.
    pub shared: &'static str,
    /// Digest of the one rank.
    pub ours: u64,
    /// Digest of the other rank.
    pub theirs: u64,
}

impl StepDigests {
    /// Returns the first difference between two ranks' digests. `world` is compared first.
    /// `tensor` is compared only if both ranks are in the same DP rank.
    pub fn difference(self, other: Self, same_dp_rank: bool) -> Option<Difference> {
        let pairs = [
            ("what all ranks share", self.world, other.world),
            (
                "what the ranks of a DP rank share",
                self.tensor,
                other.tensor,
            ),
        ];
        let shared = if same_dp_rank {
            &pairs[..]
        } else {
            &pairs[..1]
        };
        let mut differing = shared.iter().filter(|(_, ours, theirs)| ours != theirs);
        differing.next().map(|&(shared, ours, theirs)| Difference {
            shared,
            ours,
            theirs,
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shared,
            ours,
            theirs,
        } = self;
        write!(
            f,
            "the digests of {shared} are {ours:016x} and {theirs:016x}"
        )
    }
}

/// Outcome of one row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlotOutput {
    /// The row's slot.
    pub slot: u32,
    /// Tokens sampled (one; more under speculation; none for a mid-prompt chunk).
    pub token_ids: Vec<u32>,
    /// One entry per token, if asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Log-probabilities of this pass's prompt positions, if asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Number of positions that drafts were proposed for: the depth of the chain or tree.
    pub draft_depth: u32,
    /// Drafted tokens that were verified, all branches together.
    pub draft_tokens: u32,
    /// Tokens among these that a constraint forced, so that no drafter proposed them.
    pub forced_tokens: u32,
    /// Forced tokens that were accepted.
    pub accepted_forced_tokens: u32,
}

#[cfg(test)]
mod tests;
