//! Requests and their outputs on the wire.

use lockstep_types::{
    TraceContext,
    request::{
        ErrorKind, Finish, FinishReason, Output, Request, RequestError, SpeculationUsage, Usage,
    },
};

use crate::{WireError, mirror::mirror, pb::lockstep as pb};

mirror!(TraceContext { parent, state });

mirror!(Usage {
    prompt_tokens,
    completion_tokens,
    cached_tokens
});
mirror!(SpeculationUsage {
    verify_steps,
    draft_tokens,
    proposed,
    accepted
});

impl TryFrom<pb::Submit> for Request {
    type Error = WireError;
    fn try_from(mut wire: pb::Submit) -> Result<Self, WireError> {
        if wire.input_ids.is_empty() {
            return Err(WireError::Missing("input_ids"));
        }
        Ok(Self {
            generation: wire.take_generation()?,
            trace_id: wire.trace_id,
            input_ids: wire.input_ids,
            max_new_tokens: wire.max_new_tokens,
            priority: wire.priority.unwrap_or(0),
            timeout_ms: wire.timeout_ms,
            data_parallel_rank: wire.data_parallel_rank,
            cache_salt: wire.cache_salt,
            adapter_name: wire.adapter_name,
        })
    }
}

/// Returns a request as a message, under the connection-local number `request`. Choices of one
/// client request share the connection-local number `parent`. The request is not traced.
pub fn submit(body: Request, request: u64, parent: Option<u64>) -> pb::Submit {
    let Request {
        trace_id,
        input_ids,
        generation,
        max_new_tokens,
        priority,
        timeout_ms,
        data_parallel_rank,
        cache_salt,
        adapter_name,
    } = body;
    let wire = pb::Submit {
        request,
        trace_id,
        input_ids,
        max_new_tokens,
        priority: Some(priority),
        timeout_ms,
        data_parallel_rank,
        cache_salt,
        adapter_name,
        parent,
        ..pb::Submit::default()
    };
    wire.with_generation(generation)
}

/// Returns an output as a message, under the connection-local number `request`.
pub fn output(body: Output, request: u64) -> pb::Output {
    pb::Output {
        request,
        token_ids: body.token_ids,
        logprobs: body.logprobs.into_iter().map(Into::into).collect(),
        prompt_logprobs: body.prompt_logprobs.into_iter().map(Into::into).collect(),
        finish: body.finish.map(Into::into),
        dp_rank: body.dp_rank,
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
            dp_rank: wire.dp_rank,
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
            ErrorKind::NotFound => pb::ErrorKind::NotFound,
            ErrorKind::Conflict => pb::ErrorKind::Conflict,
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
            pb::ErrorKind::NotFound => ErrorKind::NotFound,
            pb::ErrorKind::Conflict => ErrorKind::Conflict,
            // A kind that this build does not know is a fault of the other side.
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

/// Returns the gRPC status for a client; `retry-after` travels as metadata.
pub fn status(error: RequestError) -> tonic::Status {
    let code = match error.kind {
        ErrorKind::Invalid => tonic::Code::InvalidArgument,
        ErrorKind::Overloaded => tonic::Code::ResourceExhausted,
        ErrorKind::Unavailable => tonic::Code::Unavailable,
        ErrorKind::Timeout => tonic::Code::DeadlineExceeded,
        ErrorKind::Internal => tonic::Code::Internal,
        ErrorKind::NotFound => tonic::Code::NotFound,
        ErrorKind::Conflict => tonic::Code::FailedPrecondition,
    };
    let mut status = tonic::Status::new(code, error.message);
    if let Some(seconds) = error.retry_after_s {
        status.metadata_mut().insert("retry-after", seconds.into());
    }
    status
}
