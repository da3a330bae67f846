//! Traces: the way of a request through each process, as spans that a collector joins.
//!
//! A sampled request has a [`Span`] for every part of its way. When the request goes on in
//! another process, its place in the trace travels along in the W3C's format
//! ([`lockstep_types::TraceContext`]). Spans wait in a bounded queue, and a thread exports them
//! by OTLP over gRPC. Making a span never waits for a collector: spans that find the queue full
//! are dropped and counted. A request that is not sampled has no spans at all, so it costs
//! nothing.

#![forbid(unsafe_code)]

mod context;
mod environment;
mod export;
mod inference;
pub mod names;
mod queue;
mod span;

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

pub use context::caller;
pub use environment::{Destination, TraceError};
pub use inference::{Inference, InferenceRequest};
use lockstep_types::{TraceConfig, TraceContext};
use opentelemetry::{
    Context,
    trace::{Span as _, Tracer as _, TracerProvider as _},
};
pub use opentelemetry::{Value, trace::SpanKind};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use queue::Counts;
pub use queue::SpanCounts;
pub use span::Span;
use tokio::runtime::Runtime;

/// Instrumentation scope of all spans.
const SCOPE: &str = "lockstep";

/// Makes the spans of one service, and exports them. Cheap to clone.
#[derive(Clone)]
pub struct Traces {
    tracer: SdkTracer,
    shared: Arc<Shared>,
}

/// State that the services of a process share.
struct Shared {
    destination: Destination,
    counts: Arc<Counts>,
    /// Threads of the connection to the collector.
    runtime: Mutex<Option<Runtime>>,
    providers: Mutex<Vec<SdkTracerProvider>>,
}

impl Traces {
    /// Starts to export spans of the service `role`; this process is its instance `instance`.
    /// The collector need not be there yet.
    ///
    /// # Errors
    /// [`TraceError`] for an address or a variable of the environment that cannot be used, or
    /// if the export cannot be started.
    pub fn start(config: &TraceConfig, role: &str, instance: &str) -> Result<Self, TraceError> {
        let destination = Destination::of(config)?;
        let runtime = export::runtime().map_err(TraceError::Start)?;
        let shared = Arc::new(Shared {
            counts: Arc::new(Counts::of(destination.shown())),
            destination,
            runtime: Mutex::new(Some(runtime)),
            providers: Mutex::default(),
        });
        Self::of(&shared, role, instance)
    }

    /// Makes spans of another service, for which this process speaks.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn beside(&self, role: &str, instance: &str) -> Result<Self, TraceError> {
        Self::of(&self.shared, role, instance)
    }

    fn of(shared: &Arc<Shared>, role: &str, instance: &str) -> Result<Self, TraceError> {
        let provider = {
            let runtime = locked(&shared.runtime);
            // The connection is served by the runtime that it is made in.
            let _inside = runtime.as_ref().map(Runtime::enter);
            export::provider(&shared.destination, (role, instance), &shared.counts)?
        };
        let tracer = provider.tracer(SCOPE);
        locked(&shared.providers).push(provider);
        Ok(Self {
            tracer,
            shared: Arc::clone(shared),
        })
    }

    /// The first span of a request in this service; `None` if the request is not sampled. The
    /// caller decides about sampling. Without a caller, the share of traced requests decides.
    pub fn begin(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        caller: Option<&TraceContext>,
    ) -> Option<Span> {
        let parent = caller.map_or_else(Context::new, context::parse);
        let builder = self.tracer.span_builder(name).with_kind(kind);
        let span = self.tracer.build_with_context(builder, &parent);
        // An unsampled request gets a span that records nothing.
        span.is_recording()
            .then(|| Span::new(span, self.tracer.clone()))
    }

    /// A part of `parent`, made by this service for another service's span. It began at
    /// `start`.
    pub fn within(
        &self,
        parent: &Span,
        name: impl Into<Cow<'static, str>>,
        start: SystemTime,
    ) -> Span {
        parent.child_by(&self.tracer, name.into(), Some(start))
    }

    /// Numbers of exported and lost spans.
    pub fn counts(&self) -> SpanCounts {
        self.shared.counts.now()
    }

    /// Exports waiting spans for at most `limit`, and ends. Spans that end later are lost.
    pub fn finish(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut providers = locked(&self.shared.providers);
        let left = || until.saturating_duration_since(Instant::now());
        let ended: Vec<_> = providers
            .drain(..)
            .map(|provider| provider.shutdown_with_timeout(left()))
            .collect();
        if ended.iter().any(Result::is_err) {
            let spans = self.shared.counts.waiting();
            let collector = self.shared.destination.shown();
            tracing::warn!(
                collector,
                spans,
                "the collector did not take the last spans in time"
            );
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Shared {
    fn drop(&mut self) {
        let runtime = self
            .runtime
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // The runtime is not waited for, wherever the last clone is dropped.
        if let Some(runtime) = runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").finish_non_exhaustive()
    }
}
