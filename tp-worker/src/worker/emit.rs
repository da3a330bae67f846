//! From logits to a step's outputs, on rank 0.

use lockstep_model::LogitBlock;
use lockstep_proto::step::SlotOutput;
use lockstep_sampling::{Request, Sampler, token_logprob};

use super::{batch::LogitUse, slots::Slots};

/// Broadcast in place of a token when a row's logits were not finite.
pub const FAILED: u32 = u32::MAX;

/// Samples and scores rows of logits as they arrive.
pub struct Emitter<'a> {
    pub slots: &'a mut Slots,
    pub uses: &'a [LogitUse],
    pub sampler: &'a mut Sampler,
    pub outputs: &'a mut [SlotOutput],
    pub sampled: &'a mut Vec<u32>,
}

impl Emitter<'_> {
    /// Consumes one block.
    pub fn take(&mut self, block: LogitBlock<'_>) {
        let rows = block.logits.chunks_exact(block.vocab);
        let uses = &self.uses[block.first..];
        for (logits, wanted) in rows.zip(uses) {
            match wanted.scored {
                Some(position) => self.score(*wanted, position, logits),
                None => self.sample(*wanted, logits),
            }
        }
    }

    /// Reports the log-probability of a prompt position.
    fn score(&mut self, wanted: LogitUse, position: u32, logits: &[f32]) {
        let slot = self.slots.get_mut(wanted.slot);
        let token = slot.tokens[position as usize];
        match token_logprob(logits, token, slot.logprobs.top as usize) {
            Ok(logprob) => self.outputs[wanted.output].prompt_logprobs.push(logprob),
            Err(_) => slot.failed = true,
        }
    }

    /// Samples a token; a slot whose logits are not finite emits nothing from
    /// then on, which its scheduler takes for an error of that request alone.
    fn sample(&mut self, wanted: LogitUse, logits: &[f32]) {
        let slot = self.slots.get_mut(wanted.slot);
        let request = Request {
            params: &slot.sampling,
            history: &slot.history,
            position: slot.tokens.len() as u64 - u64::from(slot.prompt_len),
        };
        let token = match self.sampler.sample(logits, request) {
            Ok(token) if !slot.failed => token,
            _ => {
                slot.failed = true;
                self.sampled.push(FAILED);
                return;
            }
        };
        self.sampled.push(token);
        let output = &mut self.outputs[wanted.output];
        output.token_ids.push(token);
        if slot.logprobs.output
            && let Ok(logprob) = token_logprob(logits, token, slot.logprobs.top as usize)
        {
            output.logprobs.push(logprob);
        }
    }
}
