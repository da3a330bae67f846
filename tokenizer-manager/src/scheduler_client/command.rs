//! Commands to the link's task, and the shared state that a request brings along.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use lockstep_ports::OutputSender;
use lockstep_types::{
    TraceContext,
    request::{ErrorKind, Output, Request, RequestError},
};
use tokio::sync::oneshot;

/// A message from the client or a request's handle to the link's task.
#[derive(Debug)]
pub(super) enum LinkCommand {
    /// A new request, and the channel for its outputs.
    Submit {
        number: u64,
        /// Number of the client request, if the request is one of its several choices.
        parent: Option<u64>,
        request: Box<Request>,
        /// The span in which the request continues.
        trace: Option<TraceContext>,
        outputs: OutputSender<Output>,
        live: LivePermit,
        weights: Version,
    },
    /// Abort: the handle was dropped before the request ended.
    Abort { number: u64 },
    /// Early end: the text is complete, and only the last output is awaited.
    Stop { number: u64 },
    /// Release: the handle was dropped after the request ended.
    Forget { number: u64 },
    /// Aborts the requests that clients know by one of these ids, at all frontends;
    /// `None` = all requests. Their handles receive
    /// [`FinishReason::Abort`](lockstep_types::request::FinishReason::Abort). `reply`
    /// receives the number of aborted requests, or is dropped if the scheduler could
    /// not be asked.
    AbortTrace {
        trace_ids: Option<Vec<String>>,
        reply: oneshot::Sender<usize>,
    },
}

/// Version of the weights that serve a request, set with its first output; `None` = the
/// weights that the engine started with.
pub(super) type Version = Arc<OnceLock<Option<Arc<str>>>>;

/// Permit of one request, counted against the capacity until the scheduler has finished the
/// request. So a client that reads its output slowly holds no permit.
#[derive(Debug)]
pub(super) struct LivePermit(Arc<AtomicUsize>);

impl LivePermit {
    pub(super) fn acquire(count: &Arc<AtomicUsize>, capacity: usize) -> Result<Self, RequestError> {
        let live = Self(Arc::clone(count));
        if live.0.fetch_add(1, Ordering::Relaxed) >= capacity {
            return Err(RequestError::new(
                ErrorKind::Overloaded,
                // The scheduler's words for a full queue, since this is one.
                format!(
                    "the queue is full: {capacity} requests run and wait \
                     (too many requests; --max-queued-requests)"
                ),
            ));
        }
        Ok(live)
    }
}

impl Drop for LivePermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
