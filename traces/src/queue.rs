//! Spans on their way to the exporter: a bounded queue that counts its losses.

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

/// Largest number of waiting spans of a service. A request has about a dozen.
pub(crate) const QUEUE: usize = 8192;

/// Numbers of a process's spans, by their fate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Spans that the collector has.
    pub exported: u64,
    /// Spans that found the queue full.
    pub dropped: u64,
    /// Spans that the collector did not take in time.
    pub failed: u64,
}

/// The counters behind [`SpanCounts`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Address of the collector, for the log.
    collector: String,
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    waiting: AtomicU64,
    /// True if the last export failed and the log has a line about it.
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

    /// Number of spans that wait or are being exported.
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
                // Logged once until an export works again, since a collector may be away for
                // long.
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

/// A processor that batches spans for `exporter`, and drops spans beyond [`QUEUE`].
pub(crate) fn batched(
    exporter: impl SpanExporter + 'static,
    counts: &Arc<Counts>,
) -> CountingProcessor {
    // The environment may set sizes and times of batches (OTEL_BSP_*).
    let config = BatchConfigBuilder::default().with_max_queue_size(QUEUE);
    let exporter = CountingExporter {
        exporter,
        counts: Arc::clone(counts),
    };
    let batches = BatchSpanProcessor::builder(exporter);
    CountingProcessor {
        batches: batches.with_batch_config(config.build()).build(),
        counts: Arc::clone(counts),
    }
}

/// Counts waiting spans, which the inner processor does not tell.
#[derive(Debug)]
pub(crate) struct CountingProcessor {
    batches: BatchSpanProcessor,
    counts: Arc<Counts>,
}

impl SpanProcessor for CountingProcessor {
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

/// Counts spans that an exporter takes.
#[derive(Debug)]
struct CountingExporter<E> {
    exporter: E,
    counts: Arc<Counts>,
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
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
