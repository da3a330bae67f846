//! A request as the scheduler knows it, and the outputs that the scheduler sends back.

use crate::{generation::GenerationParams, sampling::TokenLogprob};

/// One sequence to extend: tokens in, tokens out.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The client-visible id, for logs.
    pub trace_id: String,
    /// The prompt, never empty.
    pub input_ids: Vec<u32>,
    /// Parameters that its slot in every worker gets.
    pub generation: GenerationParams,
    /// 0 scores the prompt without generating (needs `generation.logprobs.prompt_start`).
    pub max_new_tokens: u32,
    /// Priority in the queue: higher goes first.
    pub priority: i32,
    /// Time limit from arrival at the scheduler, milliseconds; `None` = the server's own limit.
    pub timeout_ms: Option<u32>,
    /// DP rank that the request runs in; `None` = the scheduler chooses.
    pub data_parallel_rank: Option<u32>,
    /// Salt of the prefix cache, at most [`CACHE_SALT_BYTES`]: only requests with the same salt
    /// share cached prefixes. Requests without a salt share among themselves.
    pub cache_salt: Option<String>,
    /// Name of the adapter that it asks for, before the scheduler has resolved the name to
    /// `generation.adapter`; `None` = the model alone.
    pub adapter_name: Option<String>,
}

/// Most bytes of a request's salt of the prefix cache. The cache keeps the salt as long as any
/// block that was computed under it.
pub const CACHE_SALT_BYTES: usize = 256;

impl Request {
    /// Makes a request for up to `max_new_tokens` tokens that asks for nothing else.
    pub fn new(input_ids: Vec<u32>, max_new_tokens: u32) -> Self {
        Self {
            trace_id: String::new(),
            input_ids,
            generation: GenerationParams::default(),
            max_new_tokens,
            priority: 0,
            timeout_ms: None,
            data_parallel_rank: None,
            cache_salt: None,
            adapter_name: None,
        }
    }
}

/// Reason of an end without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end or stop token came, or a stop string.
    Stop,
    /// `max_new_tokens` or the context length was reached.
    Length,
    /// The client aborted the request.
    Abort,
}

/// Class of a request's failure; maps to one HTTP status and one gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request can never succeed: 400, INVALID_ARGUMENT.
    Invalid,
    /// A queue is full: 429, RESOURCE_EXHAUSTED.
    Overloaded,
    /// The server is starting, draining or dead: 503, UNAVAILABLE.
    Unavailable,
    /// A time limit of the request passed: 408, DEADLINE_EXCEEDED.
    Timeout,
    /// A fault of the server: 500, INTERNAL.
    Internal,
    /// The model, adapter or other thing that it names is not there: 404, NOT_FOUND.
    NotFound,
    /// The present state of the server is in the way: 409, FAILED_PRECONDITION.
    Conflict,
}

/// A request's failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// The class of the failure.
    pub kind: ErrorKind,
    /// The fault and the remedy.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// Time after which to try again, seconds.
    pub retry_after_s: Option<u32>,
}

impl RequestError {
    /// An error without a field at fault.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            retry_after_s: None,
        }
    }
}

/// Token counts of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: u32,
}

/// End of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The reason of its success, or the failure.
    pub outcome: Result<FinishReason, RequestError>,
    /// The end or stop token that ended it.
    pub matched_token: Option<u32>,
    /// Token counts of the request.
    pub usage: Usage,
    /// Counts of speculation; `None` if nothing was verified.
    pub speculation: Option<SpeculationUsage>,
}

/// Counts of a request's speculation. A position where nothing was proposed is no rejection:
/// the rate at position `i` is `accepted[i] / proposed[i]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeculationUsage {
    /// Passes that verified drafted tokens.
    pub verify_steps: u32,
    /// Drafted tokens that were verified, all branches together.
    pub draft_tokens: u32,
    /// By position: number of passes that proposed a token there.
    pub proposed: Vec<u32>,
    /// By position: number of passes that accepted a token there.
    pub accepted: Vec<u32>,
}

impl SpeculationUsage {
    /// Counts one pass that proposed `draft_tokens` tokens at `depth` positions. The first
    /// `accepted` positions were accepted.
    pub fn count(&mut self, depth: u32, draft_tokens: u32, accepted: u32) {
        self.verify_steps += 1;
        self.draft_tokens += draft_tokens;
        for (list, length) in [(&mut self.proposed, depth), (&mut self.accepted, accepted)] {
            let length = length as usize;
            if list.len() < length {
                list.resize(length, 0);
            }
            list[..length].iter_mut().for_each(|count| *count += 1);
        }
    }

    /// Drafted tokens that were accepted.
    pub fn accepted_tokens(&self) -> u32 {
        self.accepted.iter().sum()
    }

    /// Adds the counts of another request.
    pub fn add(&mut self, other: &Self) {
        self.verify_steps += other.verify_steps;
        self.draft_tokens += other.draft_tokens;
        for (sum, add) in [
            (&mut self.proposed, &other.proposed),
            (&mut self.accepted, &other.accepted),
        ] {
            sum.resize(sum.len().max(add.len()), 0);
            sum.iter_mut().zip(add).for_each(|(sum, add)| *sum += add);
        }
    }
}

/// Output of one step for one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// New tokens.
    pub token_ids: Vec<u32>,
    /// One entry per new token, if asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Log-probabilities of the prompt: sent once, with the first output, if asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// End of the request, with its last output.
    pub finish: Option<Finish>,
    /// DP rank that the request ran in; `None` if there is only one.
    pub dp_rank: Option<u32>,
}

impl Output {
    /// Returns the approximate bytes that the output takes until it is sent.
    pub fn bytes(&self) -> usize {
        let logprobs = self.logprobs.iter().chain(&self.prompt_logprobs);
        let logprobs: usize = logprobs.map(TokenLogprob::bytes).sum();
        size_of::<Self>() + size_of_val(self.token_ids.as_slice()) + logprobs
    }
}
