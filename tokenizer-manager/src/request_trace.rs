//! Spans of a traced client request: the request itself, its inference, and each
//! choice's conversion to text.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockstep_traces::{Inference, InferenceRequest, Span, SpanKind, Traces, Value, names};
use lockstep_types::{
    TraceContext,
    request::{FinishReason, Usage},
};

use crate::error::ApiError;

/// Span of a client's request on its transport. It ends when nobody holds it any more:
/// when the answer was taken, or the client has left.
#[derive(Debug)]
pub struct RequestTrace(Mutex<Span>);

/// Span of a request's inference, shared by its choices.
#[derive(Debug)]
pub struct InferenceTrace(Mutex<Inference>);

/// Span of one choice, a part of the inference.
#[derive(Debug)]
pub struct ChoiceTrace {
    of: Arc<InferenceTrace>,
    /// Span from the first token to the end.
    stream: Option<Span>,
    tokens: i64,
    chunks: i64,
    detokenize_us: u128,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RequestTrace {
    /// Begins the span if the request is sampled. `header` looks up a header that the
    /// caller sent.
    pub fn begin<'a>(
        traces: &Traces,
        name: String,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Arc<Self>> {
        let caller = lockstep_traces::caller(header);
        let span = traces.begin(name, SpanKind::Server, caller.as_ref())?;
        Some(Arc::new(Self(Mutex::new(span))))
    }

    /// Sets an attribute of the request.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        locked(&self.0).set(name, value);
    }

    /// Marks the request as failed by the server.
    pub fn fail(&self, code: &'static str, message: String) {
        let mut span = locked(&self.0);
        span.set(names::ERROR_TYPE, code);
        span.fail(message);
    }

    /// Begins a child span.
    pub fn child(&self, name: &'static str) -> Span {
        locked(&self.0).child(name)
    }

    /// Returns the trace id, for log lines.
    pub fn id(&self) -> String {
        locked(&self.0).trace_id()
    }

    /// Returns the trace context, for answers.
    pub fn context(&self) -> TraceContext {
        locked(&self.0).context()
    }
}

impl InferenceTrace {
    /// Begins the span as a child of a request.
    pub fn begin(request: &RequestTrace, inference: &InferenceRequest<'_>) -> Arc<Self> {
        let inference = Inference::begin(&locked(&request.0), inference);
        Arc::new(Self(Mutex::new(inference)))
    }

    /// Begins a child span.
    pub fn child(&self, name: &'static str) -> Span {
        locked(&self.0).span().child(name)
    }

    /// Returns the context in which the scheduler continues the trace.
    pub fn context(&self) -> TraceContext {
        locked(&self.0).span().context()
    }

    /// Sets the number of prompt tokens.
    pub fn prompts(&self, tokens: usize) {
        locked(&self.0).prompts(tokens);
    }

    /// Marks the inference as failed, by itself or by one of its choices.
    pub fn fail(&self, error: &ApiError) {
        locked(&self.0).fail(error.code(), error.message.clone());
    }
}

impl ChoiceTrace {
    /// Makes the trace of a choice that has no tokens yet.
    pub fn new(of: Arc<InferenceTrace>) -> Self {
        Self {
            of,
            stream: None,
            tokens: 0,
            chunks: 0,
            detokenize_us: 0,
        }
    }

    /// Records that `tokens` tokens arrived.
    pub fn output(&mut self, tokens: usize) {
        if self.stream.is_none() {
            let mut inference = locked(&self.of.0);
            inference.token();
            self.stream = Some(inference.span().child("detokenize and stream"));
        }
        self.tokens += i64::try_from(tokens).unwrap_or(i64::MAX);
        self.chunks += 1;
    }

    /// Adds time that detokenizing took.
    pub fn detokenized(&mut self, took: Duration) {
        self.detokenize_us += took.as_micros();
    }

    /// Ends the choice well.
    pub fn end(&mut self, reason: FinishReason, usage: &Usage) {
        locked(&self.of.0).ended(reason, usage);
    }

    /// Marks the choice as failed.
    pub fn fail(&mut self, error: &ApiError) {
        self.of.fail(error);
    }
}

impl Drop for ChoiceTrace {
    fn drop(&mut self) {
        // The choice's span must end before the inference.
        if let Some(mut stream) = self.stream.take() {
            stream.set(names::TOKENS, self.tokens);
            stream.set(names::CHUNKS, self.chunks);
            let us = i64::try_from(self.detokenize_us).unwrap_or(i64::MAX);
            stream.set(names::DETOKENIZE_US, us);
        }
    }
}
