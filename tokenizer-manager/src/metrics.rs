//! Prometheus metrics of this process and of its server.

mod adapters;
mod connections;
mod constraint_work;
mod constraints;
mod dp_ranks;
mod engine_gauges;
mod labels;
mod memory;
mod merge;
mod process;
mod server;
mod sglang;
mod traces;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use connections::render_connections;
pub use constraints::{ConstraintMetrics, Refusal, label as constraint_label};
pub use labels::with_model;
use lockstep_types::request::FinishReason;
pub use memory::render_memory;
pub use merge::merge;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
pub use process::render_process;
pub use server::render_server;
pub use sglang::render_sglang;
pub use traces::render_traces;

const METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Upper bounds of latency buckets, seconds.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
];

/// Upper bounds of length buckets, tokens; the same bounds as in vLLM.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
];
const PROMPT_LENGTHS: &str = "lockstep_request_prompt_tokens";
const OUTPUT_LENGTHS: &str = "lockstep_request_generation_tokens";

/// Interval between compactions of histograms. They keep histograms small without a
/// scraper.
pub const UPKEEP: Duration = Duration::from_secs(5);

/// Metrics recorder of this process. Its handles are made once, so recording a value
/// needs no lookup.
#[derive(Clone)]
pub struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    latencies: Latencies,
    constraints: ConstraintMetrics,
    /// Number of log lines that all processes of this node have lost.
    lost_log_lines: Arc<AtomicU64>,
}

/// Handles by which choices record metrics.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// Time from arrival to the first token, seconds.
    pub first_token: Histogram,
    /// Time between two tokens, seconds.
    pub inter_token: Histogram,
    /// Time from arrival to the last token, seconds.
    pub whole: Histogram,
    /// Time from the first token to the last, seconds.
    pub decode: Histogram,
    /// Prompt tokens of each ended choice.
    pub prompt_lengths: Histogram,
    /// Output tokens of each ended choice.
    pub output_lengths: Histogram,
    /// Choices that ended, by reason.
    pub ends: Ends,
    /// Prompt tokens of ended choices, in total.
    pub prompt_tokens: Counter,
    /// Tokens generated.
    pub generated_tokens: Counter,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: Counter,
    /// Choices being generated.
    pub in_flight: Gauge,
}

/// Choices that ended well, by reason.
#[derive(Debug, Clone)]
pub struct Ends {
    stop: Counter,
    length: Counter,
    abort: Counter,
}

impl Ends {
    fn new(recorder: &PrometheusRecorder) -> Self {
        const NAME: &str = "lockstep_request_success_total";
        recorder.describe_counter(
            NAME.into(),
            None,
            "Choices that ended without an error, by why they ended.".into(),
        );
        let ended = |reason: &'static str| {
            let key = Key::from_parts(NAME, vec![Label::new("finished_reason", reason)]);
            recorder.register_counter(&key, &METADATA)
        };
        Self {
            stop: ended("stop"),
            length: ended("length"),
            abort: ended("abort"),
        }
    }

    /// Counts one ended choice.
    pub fn count(&self, reason: FinishReason) {
        let counter = match reason {
            FinishReason::Stop => &self.stop,
            FinishReason::Length => &self.length,
            FinishReason::Abort => &self.abort,
        };
        counter.increment(1);
    }
}

impl Metrics {
    /// Makes a recorder whose series carry this tokenizer-manager's index. Several
    /// tokenizer-managers may share one port, and a scrape reaches any of them.
    ///
    /// # Errors
    /// [`BuildError`] for bucket bounds that the exporter refuses.
    pub fn new(index: usize) -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets(SECONDS)?
            .set_buckets_for_metric(Matcher::Full(PROMPT_LENGTHS.to_owned()), TOKENS)?
            .set_buckets_for_metric(Matcher::Full(OUTPUT_LENGTHS.to_owned()), TOKENS)?
            .add_global_label("tokenizer_manager", index.to_string())
            .build_recorder();
        let latencies = Latencies::new(&recorder);
        Ok(Self {
            constraints: ConstraintMetrics::new(&recorder),
            handle: recorder.handle(),
            recorder: Arc::new(recorder),
            latencies,
            lost_log_lines: Arc::default(),
        })
    }

    /// Returns handles for a choice.
    pub fn latencies(&self) -> Latencies {
        self.latencies.clone()
    }

    /// Returns handles for the compiler of constraints.
    pub fn constraints(&self) -> ConstraintMetrics {
        self.constraints.clone()
    }

    /// Counts one answered request.
    pub fn answered(&self, route: &str, status: u16) {
        let labels = vec![
            Label::new("route", route.to_owned()),
            Label::new("status", status.to_string()),
        ];
        let key = Key::from_parts("lockstep_http_requests_total", labels);
        self.recorder.register_counter(&key, &METADATA).increment(1);
    }

    /// Counts one gRPC call.
    pub fn called(&self, method: &'static str) {
        let key = Key::from_parts(
            "lockstep_grpc_requests_total",
            vec![Label::new("method", method)],
        );
        self.recorder.register_counter(&key, &METADATA).increment(1);
    }

    /// Stores the number of log lines that all processes of this node have lost so far.
    pub fn note_lost_log_lines(&self, count: u64) {
        self.lost_log_lines.store(count, Ordering::Relaxed);
    }

    /// Number of log lines that all processes of this node have lost.
    pub fn lost_log_lines(&self) -> u64 {
        self.lost_log_lines.load(Ordering::Relaxed)
    }

    /// Renders all metrics of this process in Prometheus' text format.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Moves the values since the last call into buckets.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Latencies {
    fn new(recorder: &PrometheusRecorder) -> Self {
        let histogram = |name: &'static str, help: &'static str| {
            recorder.describe_histogram(name.into(), None, help.into());
            recorder.register_histogram(&Key::from_static_name(name), &METADATA)
        };
        let counter = |name: &'static str, help: &'static str| {
            recorder.describe_counter(name.into(), None, help.into());
            recorder.register_counter(&Key::from_static_name(name), &METADATA)
        };
        recorder.describe_counter(
            "lockstep_http_requests_total".into(),
            None,
            "Requests answered, by route and HTTP status.".into(),
        );
        recorder.describe_counter(
            "lockstep_grpc_requests_total".into(),
            None,
            "Calls of lockstep.v1.Inference, by method.".into(),
        );
        recorder.describe_gauge(
            "lockstep_requests_in_flight".into(),
            None,
            "Choices being generated for clients of this tokenizer-manager.".into(),
        );
        Self {
            ends: Ends::new(recorder),
            decode: histogram(
                "lockstep_request_decode_time_seconds",
                "From a choice's first token to its last.",
            ),
            prompt_lengths: histogram(PROMPT_LENGTHS, "Prompt tokens of a choice that ended."),
            output_lengths: histogram(OUTPUT_LENGTHS, "Output tokens of a choice that ended."),
            first_token: histogram(
                "lockstep_time_to_first_token_seconds",
                "From a request's arrival to its first token.",
            ),
            inter_token: histogram(
                "lockstep_inter_token_latency_seconds",
                "Between two tokens of a choice.",
            ),
            whole: histogram(
                "lockstep_request_latency_seconds",
                "From a request's arrival to its last token.",
            ),
            prompt_tokens: counter(
                "lockstep_front_prompt_tokens_total",
                "Prompt tokens of choices that ended well.",
            ),
            generated_tokens: counter("lockstep_front_generated_tokens_total", "Tokens received."),
            cached_tokens: counter(
                "lockstep_front_cached_tokens_total",
                "Prompt tokens served from the prefix cache.",
            ),
            in_flight: recorder.register_gauge(
                &Key::from_static_name("lockstep_requests_in_flight"),
                &METADATA,
            ),
        }
    }
}
