//! A deterministic stand-in for a language model.

use lockstep_types::sampling::SamplingParams;

use crate::kv::radix::KeyUnit;

/// Model whose next token and log-probability come from a hash of all tokens before.
#[derive(Debug, Clone, Copy)]
pub struct SimModel {
    /// Number of tokens; all tokens are below it.
    pub vocab_size: u32,
}

impl SimModel {
    /// Hash of an empty context; fold tokens in with [`absorb`](Self::absorb).
    pub const EMPTY: u64 = 0x6c6f_636b;

    /// Returns the hash of the context with one more token.
    pub fn absorb(hash: u64, token: u32) -> u64 {
        token.absorb(hash)
    }

    /// Returns the token after a context, at output position `position`.
    pub fn sample(&self, context: u64, sampling: &SamplingParams, position: u32) -> u32 {
        let key = (position ^ 0x5eed).absorb(context ^ sampling.seed);
        let vocab = u64::from(self.vocab_size.max(1));
        // The remainder is below `vocab_size`, so the cast loses nothing.
        let mut token = (key % vocab) as u32;
        if position < sampling.min_new_tokens {
            for _ in 0..self.vocab_size {
                if !sampling.stop_token_ids.contains(&token) {
                    break;
                }
                token = (token + 1) % self.vocab_size;
            }
        }
        token
    }

    /// Returns the log-probability of `token` after a context.
    pub fn logprob(&self, context: u64, token: u32) -> f32 {
        let key = token.absorb(context.rotate_left(17));
        -((key >> 40) as f32) / 65_536.0
    }
}
