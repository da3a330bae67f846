//! All outputs of one request joined.

use lockstep_types::{
    request::{Finish, Output},
    sampling::TokenLogprob,
};

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completion {
    /// All tokens, a stop token included.
    pub token_ids: Vec<u32>,
    /// One per token, when asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Of the prompt, when asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// How it ended; `None` while it runs.
    pub finish: Option<Finish>,
}

impl Completion {
    /// Appends what one step brought.
    pub fn add(&mut self, output: Output) {
        self.token_ids.extend(output.token_ids);
        self.logprobs.extend(output.logprobs);
        self.prompt_logprobs.extend(output.prompt_logprobs);
        self.finish = output.finish.or(self.finish.take());
    }
}
