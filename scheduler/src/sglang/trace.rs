//! Trace of a gateway's call.

use lockstep_proto::pb::sglang::grpc::scheduler::{GenerateResponse, generate_response::Response};
use lockstep_traces::{Inference, InferenceRequest, Span, SpanKind, Traces, names};
use lockstep_types::{
    TraceContext,
    request::{FinishReason, Usage},
};
use tonic::{Status, metadata::MetadataMap};

use super::convert::Call;

/// Service and method, as the conventions write them.
const METHOD: &str = "sglang.grpc.scheduler.SglangScheduler/Generate";

/// Span of the call, and the span of its request to the model in it.
pub struct CallTrace {
    // Ends before the span that contains it.
    inference: Option<Inference>,
    span: Span,
}

impl CallTrace {
    /// Begins the call's span; `None` if the call is not sampled.
    pub fn begin(traces: Option<&Traces>, metadata: &MetadataMap) -> Option<Self> {
        let traces = traces?;
        let caller = lockstep_traces::caller(|key| metadata.get(key)?.to_str().ok());
        let mut span = traces.begin(METHOD, SpanKind::Server, caller.as_ref())?;
        span.set(names::RPC_SYSTEM, "grpc");
        span.set(names::RPC_METHOD, METHOD);
        Some(Self {
            inference: None,
            span,
        })
    }

    /// Begins the span of the request to the model. Returns the context for the call's choices.
    pub fn asks(&mut self, model: &str, id: &str, call: &Call) -> TraceContext {
        let Some(first) = call.requests.first() else {
            return self.span.context();
        };
        let request = InferenceRequest {
            operation: "text_completion",
            model,
            id,
            max_tokens: Some(first.max_new_tokens),
            sampling: &first.generation.sampling,
            choices: call.requests.len(),
        };
        let mut inference = Inference::begin(&self.span, &request);
        inference.prompts(first.input_ids.len());
        let context = inference.span().context();
        self.inference = Some(inference);
        context
    }

    /// Begins a part of the request to the model.
    pub fn child(&self, name: &'static str) -> Span {
        let inference = self.inference.as_ref().map(Inference::span);
        inference.unwrap_or(&self.span).child(name)
    }

    /// Notes a message that is sent.
    pub fn says(&mut self, message: &Result<GenerateResponse, Status>) {
        let message = match message {
            Ok(message) => message,
            Err(status) => return self.fail(status),
        };
        let Some(inference) = &mut self.inference else {
            return;
        };
        match &message.response {
            Some(Response::Chunk(_)) => inference.token(),
            Some(Response::Complete(complete)) => {
                let reason = match complete.finish_reason.as_str() {
                    "stop" => FinishReason::Stop,
                    "length" => FinishReason::Length,
                    _ => FinishReason::Abort,
                };
                let usage = Usage {
                    prompt_tokens: complete.prompt_tokens,
                    completion_tokens: complete.completion_tokens,
                    cached_tokens: complete.cached_tokens,
                };
                inference.ended(reason, &usage);
            }
            None => {}
        }
    }

    /// Notes that the call fails with this status.
    pub fn fail(&mut self, status: &Status) {
        let code = format!("{:?}", status.code());
        if let Some(inference) = &mut self.inference {
            inference.fail(code.clone(), status.message().to_owned());
        }
        self.span.set(names::RPC_STATUS, code);
        self.span.fail(status.message().to_owned());
    }
}
