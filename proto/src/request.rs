//! A request as the scheduler knows it, and what it sends back.

use crate::{
    WireError,
    pb::lockstep as pb,
    sampling::{LogprobParams, SamplingParams, TokenLogprob},
};

/// One sequence to extend: tokens in, tokens out.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The client-visible id, for logs.
    pub trace_id: String,
    /// The prompt, never empty.
    pub input_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is reported of them.
    pub logprobs: LogprobParams,
    /// 0 scores the prompt without generating (needs `logprobs.prompt_start`).
    pub max_new_tokens: u32,
    /// Higher first.
    pub priority: i32,
    /// From arrival at the scheduler, milliseconds; `None` = the server's own limit.
    pub timeout_ms: Option<u32>,
    /// Draft steps at the most; 0 = no speculation; `None` = the server's own.
    pub max_draft_steps: Option<u32>,
}

/// Why a request ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end or stop token, or a stop string.
    Stop,
    /// `max_new_tokens` or the context length.
    Length,
    /// Aborted by its client.
    Abort,
}

/// What went wrong with a request; maps to one HTTP status and one gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request can never succeed: 400, INVALID_ARGUMENT.
    Invalid,
    /// A queue is full: 429, RESOURCE_EXHAUSTED.
    Overloaded,
    /// Starting, draining or dead: 503, UNAVAILABLE.
    Unavailable,
    /// A time limit of the request passed: 408, DEADLINE_EXCEEDED.
    Timeout,
    /// A fault of the server: 500, INTERNAL.
    Internal,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// The class of the failure.
    pub kind: ErrorKind,
    /// What happened and what to do.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// When to try again, seconds.
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

impl From<RequestError> for tonic::Status {
    /// The gRPC status a client gets; `retry-after` travels as metadata.
    fn from(error: RequestError) -> Self {
        let code = match error.kind {
            ErrorKind::Invalid => tonic::Code::InvalidArgument,
            ErrorKind::Overloaded => tonic::Code::ResourceExhausted,
            ErrorKind::Unavailable => tonic::Code::Unavailable,
            ErrorKind::Timeout => tonic::Code::DeadlineExceeded,
            ErrorKind::Internal => tonic::Code::Internal,
        };
        let mut status = Self::new(code, error.message);
        if let Some(seconds) = error.retry_after_s {
            status.metadata_mut().insert("retry-after", seconds.into());
        }
        status
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

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Well, or why not.
    pub outcome: Result<FinishReason, RequestError>,
    /// The end or stop token that ended it.
    pub matched_token: Option<u32>,
    /// Its counts.
    pub usage: Usage,
    /// What speculation brought; `None` where nothing was verified.
    pub speculation: Option<SpeculationUsage>,
}

/// What speculation brought a request. A position never proposed is no
/// rejection: rates are `accepted[i] / proposed[i]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeculationUsage {
    /// Passes that verified drafted tokens.
    pub verify_steps: u32,
    /// Drafted tokens that were verified, all branches together.
    pub draft_tokens: u32,
    /// By position: passes that proposed a token there.
    pub proposed: Vec<u32>,
    /// By position: passes that accepted one there.
    pub accepted: Vec<u32>,
}

impl SpeculationUsage {
    /// Counts one pass that proposed `depth` positions, `draft_tokens` tokens
    /// in all, of which the first `accepted` positions were accepted.
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

    /// Adds what speculation brought another request.
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

/// What one step brought for one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// New tokens.
    pub token_ids: Vec<u32>,
    /// One per new token, when asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Once, with the first output, when asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// With the last output.
    pub finish: Option<Finish>,
}

impl TryFrom<pb::Submit> for Request {
    type Error = WireError;
    fn try_from(wire: pb::Submit) -> Result<Self, WireError> {
        if wire.input_ids.is_empty() {
            return Err(WireError::Missing("input_ids"));
        }
        Ok(Self {
            trace_id: wire.trace_id,
            input_ids: wire.input_ids,
            sampling: wire
                .sampling
                .ok_or(WireError::Missing("sampling"))?
                .try_into()?,
            logprobs: wire.logprobs.unwrap_or_default().into(),
            max_new_tokens: wire.max_new_tokens,
            priority: wire.priority.unwrap_or(0),
            timeout_ms: wire.timeout_ms,
            max_draft_steps: wire.max_draft_steps,
        })
    }
}

impl Request {
    /// The wire form, under the connection-local number `request`.
    pub fn into_submit(self, request: u64) -> pb::Submit {
        pb::Submit {
            request,
            trace_id: self.trace_id,
            sampling: Some((&self.sampling).into()),
            logprobs: Some(self.logprobs.into()),
            input_ids: self.input_ids,
            max_new_tokens: self.max_new_tokens,
            priority: Some(self.priority),
            timeout_ms: self.timeout_ms,
            max_draft_steps: self.max_draft_steps,
        }
    }
}

impl Output {
    /// The wire form, under the connection-local number `request`.
    pub fn into_wire(self, request: u64) -> pb::Output {
        pb::Output {
            request,
            token_ids: self.token_ids,
            logprobs: self.logprobs.into_iter().map(Into::into).collect(),
            prompt_logprobs: self.prompt_logprobs.into_iter().map(Into::into).collect(),
            finish: self.finish.map(Into::into),
        }
    }
}

impl TryFrom<pb::Output> for Output {
    type Error = WireError;
    fn try_from(wire: pb::Output) -> Result<Self, WireError> {
        Ok(Self {
            token_ids: wire.token_ids,
            logprobs: wire.logprobs.into_iter().map(Into::into).collect(),
            prompt_logprobs: wire.prompt_logprobs.into_iter().map(Into::into).collect(),
            finish: wire.finish.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<Finish> for pb::Finish {
    fn from(finish: Finish) -> Self {
        let kind = match finish.outcome {
            Ok(reason) => pb::finish::Kind::Reason(pb::FinishReason::from(reason).into()),
            Err(error) => pb::finish::Kind::Error(error.into()),
        };
        Self {
            kind: Some(kind),
            matched_token: finish.matched_token,
            usage: Some(finish.usage.into()),
            speculation: finish.speculation.map(Into::into),
        }
    }
}

impl TryFrom<pb::Finish> for Finish {
    type Error = WireError;
    fn try_from(wire: pb::Finish) -> Result<Self, WireError> {
        let outcome = match wire.kind.ok_or(WireError::Missing("finish.kind"))? {
            pb::finish::Kind::Reason(reason) => Ok(pb::FinishReason::try_from(reason)
                .ok()
                .and_then(|reason| reason.try_into().ok())
                .ok_or(WireError::Missing("finish.reason"))?),
            pb::finish::Kind::Error(error) => Err(error.into()),
        };
        Ok(Self {
            outcome,
            matched_token: wire.matched_token,
            usage: wire.usage.unwrap_or_default().into(),
            speculation: wire.speculation.map(Into::into),
        })
    }
}

impl From<SpeculationUsage> for pb::SpeculationUsage {
    fn from(usage: SpeculationUsage) -> Self {
        Self {
            verify_steps: usage.verify_steps,
            draft_tokens: usage.draft_tokens,
            proposed: usage.proposed,
            accepted: usage.accepted,
        }
    }
}

impl From<pb::SpeculationUsage> for SpeculationUsage {
    fn from(wire: pb::SpeculationUsage) -> Self {
        Self {
            verify_steps: wire.verify_steps,
            draft_tokens: wire.draft_tokens,
            proposed: wire.proposed,
            accepted: wire.accepted,
        }
    }
}

impl From<FinishReason> for pb::FinishReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
            FinishReason::Abort => Self::Abort,
        }
    }
}

impl TryFrom<pb::FinishReason> for FinishReason {
    type Error = WireError;
    fn try_from(wire: pb::FinishReason) -> Result<Self, WireError> {
        match wire {
            pb::FinishReason::Stop => Ok(Self::Stop),
            pb::FinishReason::Length => Ok(Self::Length),
            pb::FinishReason::Abort => Ok(Self::Abort),
            pb::FinishReason::Unspecified => Err(WireError::Missing("finish_reason")),
        }
    }
}

impl From<RequestError> for pb::RequestError {
    fn from(error: RequestError) -> Self {
        let kind = match error.kind {
            ErrorKind::Invalid => pb::ErrorKind::Invalid,
            ErrorKind::Overloaded => pb::ErrorKind::Overloaded,
            ErrorKind::Unavailable => pb::ErrorKind::Unavailable,
            ErrorKind::Timeout => pb::ErrorKind::Timeout,
            ErrorKind::Internal => pb::ErrorKind::Internal,
        };
        Self {
            kind: kind.into(),
            message: error.message,
            param: error.param,
            retry_after_s: error.retry_after_s,
        }
    }
}

impl From<pb::RequestError> for RequestError {
    fn from(wire: pb::RequestError) -> Self {
        let kind = match wire.kind() {
            pb::ErrorKind::Invalid => ErrorKind::Invalid,
            pb::ErrorKind::Overloaded => ErrorKind::Overloaded,
            pb::ErrorKind::Unavailable => ErrorKind::Unavailable,
            pb::ErrorKind::Timeout => ErrorKind::Timeout,
            // A kind this build does not know is a fault of the other side.
            pb::ErrorKind::Internal | pb::ErrorKind::Unspecified => ErrorKind::Internal,
        };
        Self {
            kind,
            message: wire.message,
            param: wire.param,
            retry_after_s: wire.retry_after_s,
        }
    }
}

impl From<Usage> for pb::Usage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
        }
    }
}

impl From<pb::Usage> for Usage {
    fn from(wire: pb::Usage) -> Self {
        Self {
            prompt_tokens: wire.prompt_tokens,
            completion_tokens: wire.completion_tokens,
            cached_tokens: wire.cached_tokens,
        }
    }
}
