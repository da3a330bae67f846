//! The spans of a client's request that is traced: the request itself, what it asks of the
//! model, and each choice's way to text.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockstep_traces::{Asked, Inference, Span, SpanKind, Traces, Value, names};
use lockstep_types::{
    TraceContext,
    request::{FinishReason, Usage},
};

use crate::error::ApiError;

/// The span of a client's request, as its transport has it. It ends when nobody holds it any
/// more: when the answer was taken, or the client has left.
#[derive(Debug)]
pub struct RequestTrace(Mutex<Span>);

/// What a request asks of the model, shared by its choices.
#[derive(Debug)]
pub struct InferenceTrace(Mutex<Inference>);

/// One choice's part in that.
#[derive(Debug)]
pub struct ChoiceTrace {
    of: Arc<InferenceTrace>,
    /// From its first token on.
    stream: Option<Span>,
    tokens: i64,
    chunks: i64,
    detokenize_us: u128,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RequestTrace {
    /// Begins, where the request is sampled; `header` finds what its caller sent.
    pub fn begin<'a>(
        traces: &Traces,
        name: String,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Arc<Self>> {
        let caller = lockstep_traces::caller(header);
        let span = traces.begin(name, SpanKind::Server, caller.as_ref())?;
        Some(Arc::new(Self(Mutex::new(span))))
    }

    /// Says something of the request.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        locked(&self.0).set(name, value);
    }

    /// The server failed it.
    pub fn fail(&self, code: &'static str, message: String) {
        let mut span = locked(&self.0);
        span.set(names::ERROR_TYPE, code);
        span.fail(message);
    }

    /// A part of it that begins now.
    pub fn child(&self, name: &'static str) -> Span {
        locked(&self.0).child(name)
    }

    /// The trace's number, for log lines.
    pub fn id(&self) -> String {
        locked(&self.0).trace_id()
    }

    /// For answers: where to find it.
    pub fn context(&self) -> TraceContext {
        locked(&self.0).context()
    }
}

impl InferenceTrace {
    /// Begins as a part of a request.
    pub fn begin(request: &RequestTrace, asked: &Asked<'_>) -> Arc<Self> {
        let inference = Inference::begin(&locked(&request.0), asked);
        Arc::new(Self(Mutex::new(inference)))
    }

    /// A part of it that begins now.
    pub fn child(&self, name: &'static str) -> Span {
        locked(&self.0).span().child(name)
    }

    /// Where the scheduler goes on.
    pub fn context(&self) -> TraceContext {
        locked(&self.0).span().context()
    }

    /// Its prompts have so many tokens.
    pub fn prompts(&self, tokens: usize) {
        locked(&self.0).prompts(tokens);
    }

    /// It failed, or one of its choices did.
    pub fn fail(&self, error: &ApiError) {
        locked(&self.0).fail(error.code(), error.message.clone());
    }
}

impl ChoiceTrace {
    /// Of a choice without tokens.
    pub fn new(of: Arc<InferenceTrace>) -> Self {
        Self {
            of,
            stream: None,
            tokens: 0,
            chunks: 0,
            detokenize_us: 0,
        }
    }

    /// So many tokens came.
    pub fn output(&mut self, tokens: usize) {
        if self.stream.is_none() {
            let mut inference = locked(&self.of.0);
            inference.token();
            self.stream = Some(inference.span().child("detokenize and stream"));
        }
        self.tokens += i64::try_from(tokens).unwrap_or(i64::MAX);
        self.chunks += 1;
    }

    /// Tokens have become text in this time.
    pub fn detokenized(&mut self, took: Duration) {
        self.detokenize_us += took.as_micros();
    }

    /// It ended well.
    pub fn end(&mut self, reason: FinishReason, usage: &Usage) {
        locked(&self.of.0).ended(reason, usage);
    }

    /// It failed.
    pub fn fail(&mut self, error: &ApiError) {
        self.of.fail(error);
    }
}

impl Drop for ChoiceTrace {
    fn drop(&mut self) {
        // It ends before what it is a part of.
        if let Some(mut stream) = self.stream.take() {
            stream.set(names::TOKENS, self.tokens);
            stream.set(names::CHUNKS, self.chunks);
            let us = i64::try_from(self.detokenize_us).unwrap_or(i64::MAX);
            stream.set(names::DETOKENIZE_US, us);
        }
    }
}
