//! Spans on their way to the exporter: a bounded queue that counts what it loses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};

/// Spans of a service that may wait. A request has about a dozen.
pub(crate) const QUEUE: usize = 8192;

/// What became of a process's spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// The collector has them.
    pub exported: u64,
    /// They found the queue full.
    pub dropped: u64,
    /// The collector did not take them in time.
    pub failed: u64,
}

/// The same while it is counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The collector's address, for the log.
    collector: String,
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    waiting: AtomicU64,
    /// The last export failed, and that was said.
    failing: AtomicBool,
}

impl Counts {
    pub(crate) fn of(collector: String) -> Self {
        Self {
            collector,
            ..Self::default()
        }
    }

    pub(crate) fn now(&self) -> SpanCounts {
        SpanCounts {
            exported: self.exported.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }

    /// Spans that wait or are being exported.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    fn ended(&self, spans: u64, result: &OTelSdkResult) {
        self.waiting.fetch_sub(spans, Relaxed);
        match result {
            Ok(()) => {
                self.exported.fetch_add(spans, Relaxed);
                if self.failing.swap(false, Relaxed) {
                    tracing::info!(self.collector, "the collector takes spans again");
                }
            }
            Err(error) => {
                self.failed.fetch_add(spans, Relaxed);
                // Once until it works again: a collector that is away is no news.
                if !self.failing.swap(true, Relaxed) {
                    tracing::warn!(
                        self.collector,
                        %error,
                        "spans cannot be exported; they are lost until they can"
                    );
                }
            }
        }
    }
}

/// A processor that batches spans for `exporter`, and drops those beyond [`QUEUE`].
pub(crate) fn batched(exporter: impl SpanExporter + 'static, counts: &Arc<Counts>) -> Bounded {
    // Sizes and times of batches may be the environment's (OTEL_BSP_*).
    let config = BatchConfigBuilder::default().with_max_queue_size(QUEUE);
    let exporter = Counted {
        exporter,
        counts: Arc::clone(counts),
    };
    let batches = BatchSpanProcessor::builder(exporter);
    Bounded {
        batches: batches.with_batch_config(config.build()).build(),
        counts: Arc::clone(counts),
    }
}

/// Knows how many spans wait, which the processor inside does not tell.
#[derive(Debug)]
pub(crate) struct Bounded {
    batches: BatchSpanProcessor,
    counts: Arc<Counts>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.counts.waiting.fetch_add(1, Relaxed) >= QUEUE as u64 {
            self.counts.waiting.fetch_sub(1, Relaxed);
            self.counts.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.batches.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Counts what an exporter takes.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    counts: Arc<Counts>,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.exporter.export(batch).await;
        self.counts.ended(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
