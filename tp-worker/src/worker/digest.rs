//! Rolling digests of everything that happened to a worker.

use lockstep_types::{
    sampling::{LogprobParams, SamplingParams},
    step::{SlotExtend, SlotOpen, StepDigests, StepPlan},
};

/// What ranks are compared by after every step: see [`StepDigests`].
#[derive(Debug)]
pub struct Digests {
    /// Takes in plans, drafts and tokens.
    pub tensor: Digest,
    /// Takes in what ranks with other requests do too.
    pub world: Digest,
}

impl Digests {
    /// Of nothing.
    pub fn new() -> Self {
        Self {
            tensor: Digest::new(),
            world: Digest::new(),
        }
    }

    /// Takes in a plan.
    pub fn plan(&mut self, plan: &StepPlan) {
        self.tensor.plan(plan);
        self.world.word(plan.step);
        self.world.word(u64::from(plan.draft_steps));
    }

    /// The digests so far.
    pub fn values(&self) -> StepDigests {
        StepDigests {
            tensor: self.tensor.value(),
            world: self.world.value(),
        }
    }
}

/// 64-bit FNV-1a over words, with a final mix (Fowler, Noll & Vo; finalizer
/// of MurmurHash3). Tells accidents apart, not attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Of nothing.
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Takes in one word.
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }

    /// Takes in a list, its length first.
    pub fn list(&mut self, values: &[u32]) {
        self.word(values.len() as u64);
        for value in values {
            self.word(u64::from(*value));
        }
    }

    /// Takes in a plan. Structs are taken apart without `..`, here and below, so
    /// that a new field does not compile until it is taken in too.
    pub fn plan(&mut self, plan: &StepPlan) {
        let StepPlan {
            step,
            closes,
            opens,
            extends,
            draft_steps,
        } = plan;
        self.word(*step);
        self.list(closes);
        self.word(opens.len() as u64);
        opens.iter().for_each(|open| self.open(open));
        self.word(extends.len() as u64);
        extends.iter().for_each(|extend| self.extend(extend));
        self.word(u64::from(*draft_steps));
    }

    /// The digest so far.
    pub fn value(self) -> u64 {
        let mut value = self.0;
        value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        value = (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        value ^ value >> 33
    }

    fn open(&mut self, open: &SlotOpen) {
        let SlotOpen {
            slot,
            token_ids,
            prompt_len,
            cached_len,
            sampling,
            logprobs,
            max_draft_steps,
        } = open;
        self.word(u64::from(*slot));
        self.list(token_ids);
        self.word(u64::from(*prompt_len));
        self.word(u64::from(*cached_len));
        self.sampling(sampling);
        self.logprobs(*logprobs);
        self.option(*max_draft_steps);
    }

    fn sampling(&mut self, sampling: &SamplingParams) {
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
            self.word(u64::from(value.to_bits()));
        }
        self.word(u64::from(*top_k));
        self.word(logit_bias.len() as u64);
        for (token, bias) in logit_bias {
            self.word(u64::from(*token) << 32 | u64::from(bias.to_bits()));
        }
        self.word(*seed);
        self.word(u64::from(*min_new_tokens));
        self.list(stop_token_ids);
        self.word(u64::from(*ignore_eos));
    }

    fn logprobs(&mut self, logprobs: LogprobParams) {
        let LogprobParams {
            output,
            top,
            prompt_start,
        } = logprobs;
        self.word(u64::from(output) << 32 | u64::from(top));
        self.option(prompt_start);
    }

    fn extend(&mut self, extend: &SlotExtend) {
        let SlotExtend {
            slot,
            prefill_len,
            sample,
            new_pages,
        } = extend;
        self.word(u64::from(*slot) << 32 | u64::from(*prefill_len));
        self.word(u64::from(*sample));
        self.list(new_pages);
    }

    /// No `u32` is `u64::MAX`.
    fn option(&mut self, value: Option<u32>) {
        self.word(value.map_or(u64::MAX, u64::from));
    }
}

#[cfg(test)]
mod tests;
