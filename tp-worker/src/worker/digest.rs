//! A rolling digest of everything that happened to a worker.

use lockstep_types::step::{SlotExtend, SlotOpen, StepPlan};

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

    /// Takes in every field of a plan.
    pub fn plan(&mut self, plan: &StepPlan) {
        self.word(plan.step);
        self.list(&plan.closes);
        self.word(plan.opens.len() as u64);
        plan.opens.iter().for_each(|open| self.open(open));
        self.word(plan.extends.len() as u64);
        plan.extends.iter().for_each(|extend| self.extend(extend));
    }

    /// The digest so far.
    pub fn value(self) -> u64 {
        let mut value = self.0;
        value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        value = (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        value ^ value >> 33
    }

    fn open(&mut self, open: &SlotOpen) {
        self.word(u64::from(open.slot));
        self.list(&open.token_ids);
        self.word(u64::from(open.prompt_len));
        self.word(u64::from(open.cached_len));
        let sampling = &open.sampling;
        for value in [
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        ] {
            self.word(u64::from(value.to_bits()));
        }
        self.word(u64::from(sampling.top_k));
        self.word(sampling.logit_bias.len() as u64);
        for (token, bias) in &sampling.logit_bias {
            self.word(u64::from(*token) << 32 | u64::from(bias.to_bits()));
        }
        self.word(sampling.seed);
        self.word(u64::from(sampling.min_new_tokens));
        self.list(&sampling.stop_token_ids);
        self.word(u64::from(sampling.ignore_eos));
        let logprobs = open.logprobs;
        self.word(u64::from(logprobs.output) << 32 | u64::from(logprobs.top));
        self.word(logprobs.prompt_start.map_or(u64::MAX, u64::from));
    }

    fn extend(&mut self, extend: &SlotExtend) {
        self.word(u64::from(extend.slot) << 32 | u64::from(extend.prefill_len));
        self.word(u64::from(extend.sample));
        self.list(&extend.new_pages);
    }
}
