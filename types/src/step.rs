//! The contract between scheduler and worker: plans down, results up.
//!
//! A plan never carries a request's KV length: under overlap the scheduler
//! does not know yet how many tokens the previous step committed. The worker's
//! slot knows, and the pages granted always cover what the step may write.

use std::fmt;

use lockstep_adaptive::DepthRange;

use crate::sampling::{LogprobParams, SamplingParams, TokenLogprob};

/// One forward pass. Effects happen in field order: `closes`, `opens`, then
/// `extends` runs as one ragged batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepPlan {
    /// Consecutive number, from 1.
    pub step: u64,
    /// Slots that are free from now on.
    pub closes: Vec<u32>,
    /// Requests that get a slot.
    pub opens: Vec<SlotOpen>,
    /// The rows of the batch, each slot at most once.
    pub extends: Vec<SlotExtend>,
    /// Draft steps of the decode rows, as far as their slots allow; 0 = none.
    pub draft_steps: u32,
    /// Depths that an operator allows, for the decision that this step takes
    /// part in.
    pub depth_range: DepthRange,
}

/// Everything a worker must know of a request until its slot closes.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotOpen {
    /// Index below `max_running_requests`.
    pub slot: u32,
    /// Prompt, and after a retraction also the tokens emitted so far.
    pub token_ids: Vec<u32>,
    /// Where the output begins in `token_ids`.
    pub prompt_len: u32,
    /// Leading tokens whose KV is in place (prefix cache), `< token_ids.len()`.
    pub cached_len: u32,
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

/// What one pass brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepResult {
    /// The plan's number.
    pub step: u64,
    /// By which ranks are compared.
    pub digests: StepDigests,
    /// One per sampled or scored row, in the plan's order; rank 0 only.
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

/// Where a step's time went, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Drafting, over all draft steps.
    pub draft_us: u32,
    /// The pass, up to its tokens.
    pub verify_us: u32,
    /// What the drafter did with the outcome, before the result was sent.
    pub extend_us: u32,
}

/// Rolling digests over all steps so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepDigests {
    /// Of what one tensor-parallel group shares: plans, drafts and tokens.
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
    /// How two ranks of one tensor-parallel group differ; what all ranks share
    /// is looked at first.
    pub fn difference(self, other: Self) -> Option<Difference> {
        let pairs = [
            ("what all ranks share", self.world, other.world),
            (
                "what a tensor-parallel group shares",
                self.tensor,
                other.tensor,
            ),
        ];
        let differs = pairs.into_iter().find(|(_, ours, theirs)| ours != theirs);
        differs.map(|(shared, ours, theirs)| Difference {
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
mod tests {
    use super::*;

    #[test]
    fn either_digest_tells_ranks_apart_and_is_named() {
        let ours = StepDigests {
            tensor: 5,
            world: 7,
        };
        assert_eq!(ours.difference(ours), None);
        let tensor = StepDigests { tensor: 6, ..ours };
        let world = StepDigests { world: 8, ..ours };
        for (other, text) in [
            (
                tensor,
                "what a tensor-parallel group shares are 0000000000000005 and 0000000000000006",
            ),
            (
                world,
                "what all ranks share are 0000000000000007 and 0000000000000008",
            ),
        ] {
            let difference = ours.difference(other).map(|d| d.to_string());
            assert_eq!(difference, Some(format!("the digests of {text}")));
        }
    }
}
