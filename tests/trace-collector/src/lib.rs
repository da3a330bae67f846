//! A collector of traces on loopback, with OTLP's `TraceService`. It keeps all spans that it
//! gets, or takes calls and never answers.

#![forbid(unsafe_code)]

mod span;
mod tree;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
pub use span::{CollectedSpan, Value};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};
pub use tree::tree;

/// A collector that listens until it is dropped.
pub struct Collector {
    address: SocketAddr,
    kept: Arc<Kept>,
    runtime: Option<Runtime>,
}

/// Collected calls and spans, with the signal of a change.
#[derive(Default)]
struct Kept {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    spans: Vec<CollectedSpan>,
    calls: usize,
}

impl Kept {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Service {
    kept: Arc<Kept>,
    answers: bool,
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        {
            let mut inner = self.kept.inner();
            inner.calls += 1;
            if self.answers {
                inner.spans.extend(span::spans(request.into_inner()));
            }
        }
        self.kept.changed.notify_all();
        if !self.answers {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector on a free port.
    ///
    /// # Panics
    /// Panics if no port can be listened on.
    pub fn start() -> Self {
        Self::new(true)
    }

    /// Starts a collector that takes all calls and never answers.
    ///
    /// # Panics
    /// Panics if no port can be listened on.
    pub fn stalled() -> Self {
        Self::new(false)
    }

    fn new(answers: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let kept = Arc::<Kept>::default();
        let service = TraceServiceServer::new(Service {
            kept: kept.clone(),
            answers,
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("a setting");
        let address = listener.local_addr().expect("an address");
        let incoming = {
            let _inside = runtime.enter();
            TcpListenerStream::new(listener.try_into().expect("a listener"))
        };
        runtime.spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming),
        );
        Self {
            address,
            kept,
            runtime: Some(runtime),
        }
    }

    /// Address of the collector, in the form of `--otlp-traces-endpoint`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// All spans that came so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.kept.inner().spans.clone()
    }

    /// Number of calls that came so far.
    pub fn calls(&self) -> usize {
        self.kept.inner().calls
    }

    /// Waits until `is` holds for the calls and spans so far. Returns true if that happens
    /// within a minute.
    pub fn wait(&self, is: impl Fn(usize, &[CollectedSpan]) -> bool) -> bool {
        const LIMIT: Duration = Duration::from_secs(60);
        let until = Instant::now() + LIMIT;
        let mut inner = self.kept.inner();
        while !is(inner.calls, &inner.spans) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.kept.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // The runtime is not waited for, since the drop may happen inside of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
