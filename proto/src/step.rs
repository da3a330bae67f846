//! The contract between scheduler and worker: plans down, results up.
//!
//! A plan never carries a request's KV length: under overlap the scheduler
//! does not know yet how many tokens the previous step committed. The worker's
//! slot knows, and the pages granted always cover what the step may write.

use crate::{
    WireError,
    pb::lockstep as pb,
    sampling::{LogprobParams, SamplingParams, TokenLogprob},
};

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
    /// Rolling digest over plans and tokens; equal on all ranks.
    pub digest: u64,
    /// One per sampled or scored row, in the plan's order; rank 0 only.
    pub outputs: Vec<SlotOutput>,
    /// Time from taking the plan up to knowing its tokens, microseconds.
    pub forward_us: u64,
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

impl From<StepPlan> for pb::StepPlan {
    fn from(plan: StepPlan) -> Self {
        Self {
            step: plan.step,
            closes: plan.closes,
            opens: plan.opens.into_iter().map(Into::into).collect(),
            extends: plan.extends.into_iter().map(Into::into).collect(),
            draft_steps: plan.draft_steps,
        }
    }
}

impl TryFrom<pb::StepPlan> for StepPlan {
    type Error = WireError;
    fn try_from(wire: pb::StepPlan) -> Result<Self, WireError> {
        Ok(Self {
            step: wire.step,
            closes: wire.closes,
            opens: wire
                .opens
                .into_iter()
                .map(TryInto::try_into)
                .collect::<Result<_, _>>()?,
            extends: wire.extends.into_iter().map(Into::into).collect(),
            draft_steps: wire.draft_steps,
        })
    }
}

impl From<SlotOpen> for pb::SlotOpen {
    fn from(open: SlotOpen) -> Self {
        Self {
            slot: open.slot,
            sampling: Some((&open.sampling).into()),
            logprobs: Some(open.logprobs.into()),
            token_ids: open.token_ids,
            prompt_len: open.prompt_len,
            cached_len: open.cached_len,
            max_draft_steps: open.max_draft_steps,
        }
    }
}

impl TryFrom<pb::SlotOpen> for SlotOpen {
    type Error = WireError;
    fn try_from(wire: pb::SlotOpen) -> Result<Self, WireError> {
        Ok(Self {
            slot: wire.slot,
            token_ids: wire.token_ids,
            prompt_len: wire.prompt_len,
            cached_len: wire.cached_len,
            sampling: wire
                .sampling
                .ok_or(WireError::Missing("sampling"))?
                .try_into()?,
            logprobs: wire.logprobs.unwrap_or_default().into(),
            max_draft_steps: wire.max_draft_steps,
        })
    }
}

impl From<SlotExtend> for pb::SlotExtend {
    fn from(extend: SlotExtend) -> Self {
        Self {
            slot: extend.slot,
            prefill_len: extend.prefill_len,
            sample: extend.sample,
            new_pages: extend.new_pages,
        }
    }
}

impl From<pb::SlotExtend> for SlotExtend {
    fn from(wire: pb::SlotExtend) -> Self {
        Self {
            slot: wire.slot,
            prefill_len: wire.prefill_len,
            sample: wire.sample,
            new_pages: wire.new_pages,
        }
    }
}

impl From<StepResult> for pb::StepResult {
    fn from(result: StepResult) -> Self {
        Self {
            step: result.step,
            digest: result.digest,
            outputs: result.outputs.into_iter().map(Into::into).collect(),
            forward_us: result.forward_us,
        }
    }
}

impl From<pb::StepResult> for StepResult {
    fn from(wire: pb::StepResult) -> Self {
        Self {
            step: wire.step,
            digest: wire.digest,
            outputs: wire.outputs.into_iter().map(Into::into).collect(),
            forward_us: wire.forward_us,
        }
    }
}

impl From<SlotOutput> for pb::SlotOutput {
    fn from(output: SlotOutput) -> Self {
        Self {
            slot: output.slot,
            token_ids: output.token_ids,
            logprobs: output.logprobs.into_iter().map(Into::into).collect(),
            prompt_logprobs: output.prompt_logprobs.into_iter().map(Into::into).collect(),
            draft_depth: output.draft_depth,
            draft_tokens: output.draft_tokens,
        }
    }
}

impl From<pb::SlotOutput> for SlotOutput {
    fn from(wire: pb::SlotOutput) -> Self {
        Self {
            slot: wire.slot,
            token_ids: wire.token_ids,
            logprobs: wire.logprobs.into_iter().map(Into::into).collect(),
            prompt_logprobs: wire.prompt_logprobs.into_iter().map(Into::into).collect(),
            draft_depth: wire.draft_depth,
            draft_tokens: wire.draft_tokens,
        }
    }
}
