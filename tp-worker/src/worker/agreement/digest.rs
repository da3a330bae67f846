//! Rolling digests of everything that happened to a worker.

use lockstep_adaptive::{DepthRange, Digest};
use lockstep_types::{
    sampling::{LogprobParams, SamplingParams},
    step::{PlanPart, SlotExtend, SlotOpen, StepDigests, StepPlan},
};

/// Digests by which ranks are compared after every step: see [`StepDigests`].
#[derive(Debug)]
pub struct Digests {
    /// Digest of plans, drafts and tokens, which the ranks of a DP rank share.
    pub tensor: Digest,
    /// Digest of what all ranks share: numbers of steps and of draft steps, and sizes of
    /// passes.
    pub world: Digest,
}

impl Digests {
    /// Makes digests of nothing.
    pub fn new() -> Self {
        Self {
            tensor: Digest::new(),
            world: Digest::new(),
        }
    }

    /// Takes in a plan and the part of the rank's own DP rank.
    pub fn plan(&mut self, plan: &StepPlan, part: &PlanPart) {
        take_plan(&mut self.tensor, plan);
        take_part(&mut self.tensor, part);
        self.world.word(plan.step);
        self.world.word(u64::from(plan.draft_steps));
    }

    /// Returns the digests so far.
    pub fn values(&self) -> StepDigests {
        StepDigests {
            tensor: self.tensor.value(),
            world: self.world.value(),
        }
    }
}

/// Takes in a plan without its parts; each DP rank follows one of these. Structs are taken
/// apart without `..`, here and below, so that a new field does not compile until it is taken
/// in too.
fn take_plan(digest: &mut Digest, plan: &StepPlan) {
    let StepPlan {
        step,
        draft_steps,
        depth_range,
        parts: _,
    } = plan;
    digest.word(*step);
    digest.word(u64::from(*draft_steps));
    let DepthRange { least, most } = depth_range;
    digest.word(u64::from(*least) << 32 | u64::from(*most));
}

fn take_part(digest: &mut Digest, part: &PlanPart) {
    let PlanPart {
        closes,
        opens,
        extends,
    } = part;
    digest.list(closes);
    digest.word(opens.len() as u64);
    opens.iter().for_each(|open| take_open(digest, open));
    digest.word(extends.len() as u64);
    extends
        .iter()
        .for_each(|extend| take_extend(digest, extend));
}

fn take_open(digest: &mut Digest, open: &SlotOpen) {
    let SlotOpen {
        slot,
        token_ids,
        prompt_len,
        cached_len,
        drafted,
        sampling,
        logprobs,
        max_draft_steps,
    } = open;
    digest.word(u64::from(*slot));
    digest.list(token_ids);
    digest.word(u64::from(*prompt_len));
    digest.word(u64::from(*cached_len));
    digest.word(u64::from(*drafted));
    take_sampling(digest, sampling);
    take_logprobs(digest, *logprobs);
    take_option(digest, *max_draft_steps);
}

fn take_sampling(digest: &mut Digest, sampling: &SamplingParams) {
    let SamplingParams {
        temperature,
        top_p,
        top_k,
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        logit_bias,
        seed,
        min_new_tokens,
        stop_token_ids,
        ignore_eos,
    } = sampling;
    for value in [
        temperature,
        top_p,
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
    ] {
        digest.word(u64::from(value.to_bits()));
    }
    digest.word(u64::from(*top_k));
    digest.word(logit_bias.len() as u64);
    for (token, bias) in logit_bias {
        digest.word(u64::from(*token) << 32 | u64::from(bias.to_bits()));
    }
    digest.word(*seed);
    digest.word(u64::from(*min_new_tokens));
    digest.list(stop_token_ids);
    digest.word(u64::from(*ignore_eos));
}

fn take_logprobs(digest: &mut Digest, logprobs: LogprobParams) {
    let LogprobParams {
        output,
        top,
        prompt_start,
    } = logprobs;
    digest.word(u64::from(output) << 32 | u64::from(top));
    take_option(digest, prompt_start);
}

fn take_extend(digest: &mut Digest, extend: &SlotExtend) {
    let SlotExtend {
        slot,
        prefill_len,
        sample,
        new_pages,
    } = extend;
    digest.word(u64::from(*slot) << 32 | u64::from(*prefill_len));
    digest.word(u64::from(*sample));
    digest.list(new_pages);
}

/// Takes in an optional value; `None` becomes `u64::MAX`, which no `u32` is.
fn take_option(digest: &mut Digest, value: Option<u32>) {
    digest.word(value.map_or(u64::MAX, u64::from));
}

#[cfg(test)]
mod tests;
