//! Traces: what became of a request in each process, as spans that a collector joins.
//!
//! A request that is sampled has a [`Span`] for every part of its way; where it goes on in
//! another process, its place travels along as the W3C writes it ([`lockstep_types::TraceContext`]).
//! Spans wait in a bounded queue, and a thread exports them by OTLP over gRPC: who makes spans
//! never waits for a collector, and what finds the queue full is dropped and counted. A request
//! that is not sampled has no spans at all, so that nothing is paid for it.

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
pub use inference::{Asked, Inference};
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

/// The instrumentation scope of all spans.
const SCOPE: &str = "lockstep";

/// Makes the spans of one service, and exports them. Cheap to clone.
#[derive(Clone)]
pub struct Traces {
    tracer: SdkTracer,
    shared: Arc<Shared>,
}

/// What the services of a process share.
struct Shared {
    destination: Destination,
    counts: Arc<Counts>,
    /// Of the connection to the collector.
    runtime: Mutex<Option<Runtime>>,
    providers: Mutex<Vec<SdkTracerProvider>>,
}

impl Traces {
    /// Starts exporting spans of the service `role`, of which this process is `instance`.
    /// The collector need not be there yet.
    ///
    /// # Errors
    /// [`TraceError`] for an address or a variable of the environment that cannot be used,
    /// or where the export cannot be started.
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
    /// As [`start`](Self::start).
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

    /// The first span of a request in this service, or `None` where the request is not
    /// sampled: its caller decides that, and without a caller the share of requests that
    /// are traced.
    pub fn begin(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        caller: Option<&TraceContext>,
    ) -> Option<Span> {
        let parent = caller.map_or_else(Context::new, context::parse);
        let builder = self.tracer.span_builder(name).with_kind(kind);
        let span = self.tracer.build_with_context(builder, &parent);
        // Whoever is not sampled gets a span that records nothing.
        span.is_recording()
            .then(|| Span::new(span, self.tracer.clone()))
    }

    /// A part of `parent`, which is another service's, by this one; it began at `start`.
    pub fn within(
        &self,
        parent: &Span,
        name: impl Into<Cow<'static, str>>,
        start: SystemTime,
    ) -> Span {
        parent.child_by(&self.tracer, name.into(), Some(start))
    }

    /// How many spans were exported and lost.
    pub fn counts(&self) -> SpanCounts {
        self.shared.counts.now()
    }

    /// Exports what waits, for at most so long, and ends. Spans that end later are lost.
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
        // Nobody waits here, wherever the last of these is dropped.
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
