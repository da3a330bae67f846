//! Token counts and the late error of one request, collected while it is answered, for
//! its line in the access log; and its span, where it is traced.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::request_trace::RequestTrace;

tokio::task_local! {
    static CURRENT: Arc<RequestStats>;
}

/// Counts of one request, over all its prompts and choices.
#[derive(Debug, Default)]
pub struct RequestStats {
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    error: OnceLock<&'static str>,
    trace: OnceLock<Arc<RequestTrace>>,
}

impl RequestStats {
    /// Those of the request that the current task answers; `None` where nobody counts.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Runs `work` with these as the current ones.
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

    /// An error ended an answer whose status was sent already.
    pub fn failed(&self, code: &'static str) {
        // The first error ends the answer; there is no second.
        let _ = self.error.set(code);
    }

    /// It is traced in this span, which lives as long as these do.
    pub fn follow(&self, trace: Arc<RequestTrace>) {
        // A request has one.
        let _ = self.trace.set(trace);
    }

    /// Its span; `None` where it is not traced.
    pub fn trace(&self) -> Option<&RequestTrace> {
        self.trace.get().map(Arc::as_ref)
    }

    /// The code of that error.
    pub fn error(&self) -> Option<&'static str> {
        self.error.get().copied()
    }

    /// Tokens of the prompts and of the output so far.
    pub fn tokens(&self) -> (u64, u64) {
        (
            self.prompt_tokens.load(Ordering::Relaxed),
            self.completion_tokens.load(Ordering::Relaxed),
        )
    }
}
