//! Output that a request must get, computed without a planner.

use lockstep_types::{
    request::{FinishReason, Request},
    sampling::TokenLogprob,
};

use super::SimModel;

/// Output of a request that runs alone. A planner must give the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Alone {
    /// Tokens of the output, with the stop token.
    pub token_ids: Vec<u32>,
    /// One entry per output token, if asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Log-probabilities of the prompt, if asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Reason of the end.
    pub reason: FinishReason,
    /// The stop token that ended it.
    pub matched_token: Option<u32>,
}

/// Runs a request by itself, one token after the other.
pub fn run_alone(model: SimModel, context_length: u32, request: &Request) -> Alone {
    let hash = |tokens: &[u32]| {
        let fold = |hash, token: &u32| SimModel::absorb(hash, *token);
        tokens.iter().fold(SimModel::EMPTY, fold)
    };
    let score = |tokens: &[u32], at: usize| TokenLogprob {
        token_id: tokens[at],
        logprob: (at > 0).then(|| model.logprob(hash(&tokens[..at]), tokens[at])),
        top: Vec::new(),
    };
    let mut tokens = request.input_ids.clone();
    let prompt_len = tokens.len();
    let (sampling, logprobs) = (&request.generation.sampling, &request.generation.logprobs);
    let start = logprobs.prompt_start;
    let start = start.map_or(prompt_len, |start| start as usize);
    let mut alone = Alone {
        token_ids: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: (start..prompt_len).map(|at| score(&tokens, at)).collect(),
        reason: FinishReason::Length,
        matched_token: None,
    };
    let room = (context_length as usize).saturating_sub(prompt_len);
    let most = room.min(request.max_new_tokens as usize);
    while tokens.len() - prompt_len < most {
        let position = tokens.len() - prompt_len;
        let token = model.sample(hash(&tokens), sampling, position as u32);
        tokens.push(token);
        alone.token_ids.push(token);
        if logprobs.output {
            alone.logprobs.push(score(&tokens, tokens.len() - 1));
        }
        let may_stop = position >= sampling.min_new_tokens as usize;
        if may_stop && sampling.stop_token_ids.contains(&token) {
            alone.reason = FinishReason::Stop;
            alone.matched_token = Some(token);
            break;
        }
    }
    alone
}
