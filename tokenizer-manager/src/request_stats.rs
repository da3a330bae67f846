//! Statistics of one request, collected while it is answered. The access log gets its
//! token counts and late error. A traced request also has its span here.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::request_trace::RequestTrace;

tokio::task_local! {
    static CURRENT: Arc<RequestStats>;
}

/// Statistics of one request, over all its prompts and choices.
#[derive(Debug, Default)]
pub struct RequestStats {
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    error: OnceLock<&'static str>,
    trace: OnceLock<Arc<RequestTrace>>,
}

impl RequestStats {
    /// Returns the statistics of the request that the current task answers; `None`
    /// outside a request.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Runs `work` with these statistics as the current ones.
    pub async fn scope<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// Adds the tokens of prompts.
    pub fn prompt(&self, tokens: u64) {
        self.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Adds generated tokens.
    pub fn completion(&self, tokens: u64) {
        self.completion_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Records an error that ended an answer after its status was sent.
    pub fn failed(&self, code: &'static str) {
        // The first error ends the answer; there is no second.
        let _ = self.error.set(code);
    }

    /// Stores the request's span, which lives as long as these statistics.
    pub fn follow(&self, trace: Arc<RequestTrace>) {
        // A request has only one span.
        let _ = self.trace.set(trace);
    }

    /// Returns the request's span; `None` if it is not traced.
    pub fn trace(&self) -> Option<&RequestTrace> {
        self.trace.get().map(Arc::as_ref)
    }

    /// Returns the code of the error that ended the answer.
    pub fn error(&self) -> Option<&'static str> {
        self.error.get().copied()
    }

    /// Returns the number of prompt tokens, and of output tokens so far.
    pub fn tokens(&self) -> (u64, u64) {
        (
            self.prompt_tokens.load(Ordering::Relaxed),
            self.completion_tokens.load(Ordering::Relaxed),
        )
    }
}
