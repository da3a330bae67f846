//! The contract between scheduler and worker: plans down, results up.
//!
//! A plan never carries a request's KV length: under overlap the scheduler
//! does not know yet how many tokens the previous step committed. The worker's
//! slot knows, and the pages granted always cover what the step may write.
//!
//! Requests, slots and pages belong to a DP rank, and so does a part of each plan
//! and result. Where attention is not data-parallel there is one, number 0.

use std::fmt;

use lockstep_adaptive::DepthRange;

use crate::sampling::{LogprobParams, SamplingParams, TokenLogprob};

/// One forward pass of all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepPlan {
    /// Consecutive number, from 1.
    pub step: u64,
    /// Draft steps of the decode rows, as far as their slots allow; 0 = none.
    pub draft_steps: u32,
    /// Depths that an operator allows, for the decision that this step takes
    /// part in.
    pub depth_range: DepthRange,
    /// What each DP rank does in it; one without work has an empty part.
    pub parts: Vec<PlanPart>,
}

/// One DP rank's part of a pass. Effects happen in field order: `closes`, `opens`,
/// then `extends` runs as one ragged batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanPart {
    /// Slots that are free from now on.
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
    /// Its rows without their pages.
    fn sizes(&self) -> Self {
        let size = |extend: &SlotExtend| SlotExtend {
            new_pages: Vec::new(),
            ..*extend
        };
        Self {
            extends: self.extends.iter().map(size).collect(),
            ..Self::default()
        }
    }

    /// The most that its rows come to where a row that decodes has at most `drafts`
    /// drafts: known before anything is drafted, and to all ranks.
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
    /// What holds both.
    fn most(self, other: Self) -> Self {
        Self {
            requests: self.requests.max(other.requests),
            tokens: self.tokens.max(other.tokens),
            longest: self.longest.max(other.longest),
        }
    }

    /// Whether `row` is no larger.
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
    /// What the ranks of a DP rank need of it: their own part whole, and of the others'
    /// the rows without pages, which say how large their batches may become.
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

    /// The most that a DP rank brings where every row decodes and samples, with at most
    /// `drafts` drafts; `None` where one does not, or there is none.
    pub fn decodes(&self, drafts: u32) -> Option<PartBounds> {
        let decodes = |row: &SlotExtend| row.prefill_len == 0 && row.sample;
        if self.rows().next().is_none() || !self.rows().all(decodes) {
            return None;
        }
        let parts = self.parts.iter().map(|part| part.bounds(drafts));
        Some(parts.fold(PartBounds::default(), PartBounds::most))
    }

    /// The rows of all DP ranks.
    pub fn rows(&self) -> impl Iterator<Item = &SlotExtend> + Clone {
        self.parts.iter().flat_map(|part| &part.extends)
    }
}

/// Everything a worker must know of a request until its slot closes.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotOpen {
    /// Index below the `max_running_requests` of its DP rank.
    pub slot: u32,
    /// Prompt, and after a retraction also the tokens emitted so far.
    pub token_ids: Vec<u32>,
    /// Where the output begins in `token_ids`.
    pub prompt_len: u32,
    /// Leading tokens whose KV is in place (prefix cache), `< token_ids.len()`.
    pub cached_len: u32,
    /// Whether the drafter has its KV of these, too. Where it has not, it drafts without
    /// them, and they are whole pages.
    pub drafted: bool,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is reported of them.
    pub logprobs: LogprobParams,
    /// Draft steps at the most; `None` = as the plans say.
    pub max_draft_steps: Option<u32>,
}

/// One row of the ragged batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotExtend {
    /// An open slot.
    pub slot: u32,
    /// `> 0`: so many known tokens from where the slot stands; `0`: a decode
    /// step from the token sampled last.
    pub prefill_len: u32,
    /// Sample a token after the last position.
    pub sample: bool,
    /// Pages appended to the slot's page table before the pass. The first
    /// extend of a slot brings the pages of its cached prefix too.
    pub new_pages: Vec<u32>,
}

/// What one pass brought, all DP ranks together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepResult {
    /// The plan's number.
    pub step: u64,
    /// By DP rank: one output per sampled or scored row, in its part's order.
    pub outputs: Vec<Vec<SlotOutput>>,
    /// As in [`RankResult`], of the slowest DP rank.
    pub forward_us: u64,
    /// The same of the times it went into.
    pub stages: StageTimes,
    /// As in [`RankResult`].
    pub agreed_depth: Option<u32>,
    /// As in [`RankResult`].
    pub expected_us: u32,
}

impl StepResult {
    /// Joins what the leads of all DP ranks, in their order, brought of one step.
    /// They are sure to have agreed on the same.
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

/// What one rank says of a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankResult {
    /// The plan's number.
    pub step: u64,
    /// By which ranks are compared.
    pub digests: StepDigests,
    /// One per sampled or scored row, in the order of its DP rank's part; of that
    /// one's lead only.
    pub outputs: Vec<SlotOutput>,
    /// Time from taking the plan up to knowing its tokens, microseconds.
    pub forward_us: u64,
    /// What that time and the one after it went into.
    pub stages: StageTimes,
    /// Draft steps that the ranks have agreed on for the step
    /// [`LAG`](lockstep_adaptive::LAG) after this one; `None` = they decided
    /// nothing, and what was agreed before goes on.
    pub agreed_depth: Option<u32>,
    /// What the policy that decided it expects of that step, microseconds; 0
    /// where it does not say.
    pub expected_us: u32,
}

/// Where a step's time went, in microseconds. All zero of a rank that waits in its pass for
/// what another rank's device drafts, and can't tell the one from the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Drafting, over all draft steps.
    pub draft_us: u32,
    /// The pass, up to its tokens.
    pub verify_us: u32,
    /// What the drafter did with the outcome, before the result was sent.
    pub extend_us: u32,
}

impl StageTimes {
    /// Counts so much of the pass as drafting: a device did both one behind the other, and
    /// the host waited for them together.
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
    /// Of what the ranks of one DP rank share: plans, drafts and tokens.
    pub tensor: u64,
    /// Of what all ranks share, whatever their requests: the steps' numbers and
    /// draft steps, the sizes of their passes and the collectives of those.
    pub world: u64,
}

/// How the digests of two ranks differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Which of the two digests: for people.
    pub shared: &'static str,
    /// Of the one rank.
    pub ours: u64,
    /// Of the other.
    pub theirs: u64,
}

impl StepDigests {
    /// How two ranks differ; what all ranks share is looked at first. Only those
    /// of the same DP rank share the rest.
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

/// One row's outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlotOutput {
    /// The row's slot.
    pub slot: u32,
    /// Tokens sampled (one; more under speculation; none for a mid-prompt chunk).
    pub token_ids: Vec<u32>,
    /// One per token, when asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Of this pass's prompt positions, when asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Positions that drafts were proposed for: the depth of the chain or tree.
    pub draft_depth: u32,
    /// Drafted tokens that were verified, all branches together.
    pub draft_tokens: u32,
}

#[cfg(test)]
mod tests;
