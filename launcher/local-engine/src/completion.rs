//! Joins all outputs of one request.

use lockstep_types::{
    request::{Finish, Output},
    sampling::TokenLogprob,
};

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completion {
    /// All tokens, a stop token included.
    pub token_ids: Vec<u32>,
    /// Log-probabilities of the tokens, one per token, if asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Log-probabilities of the prompt, if asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// End of the request; `None` while it runs.
    pub finish: Option<Finish>,
}

impl Completion {
    /// Appends the output of one step.
    pub fn add(&mut self, output: Output) {
        self.token_ids.extend(output.token_ids);
        self.logprobs.extend(output.logprobs);
        self.prompt_logprobs.extend(output.prompt_logprobs);
        self.finish = output.finish.or(self.finish.take());
    }
}
