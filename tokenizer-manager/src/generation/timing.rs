//! When a choice's tokens came.

use std::sync::Arc;

use tokio::time::Instant;

use super::End;
use crate::{metrics::Latencies, request_stats::RequestStats};

/// Clock of one choice.
#[derive(Debug)]
pub(super) struct Timing {
    latencies: Latencies,
    arrived: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    stats: Option<Arc<RequestStats>>,
}

impl Timing {
    pub(super) fn new(latencies: Latencies, arrived: Instant) -> Self {
        latencies.in_flight.increment(1.0);
        Self {
            latencies,
            arrived,
            first: None,
            last: None,
            stats: RequestStats::current(),
        }
    }

    /// `tokens` new tokens came. Several at once share the time since the last.
    pub(super) fn output(&mut self, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        let latencies = &self.latencies;
        match self.last {
            None => latencies
                .first_token
                .record(now.duration_since(self.arrived)),
            Some(last) => {
                let each = now.duration_since(last).as_secs_f64() / tokens as f64;
                latencies.inter_token.record_many(each, tokens);
            }
        }
        latencies.generated_tokens.increment(tokens as u64);
        if let Some(stats) = &self.stats {
            stats.completion(tokens as u64);
        }
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// The choice ended well.
    pub(super) fn end(&mut self, end: &End) {
        let (latencies, usage) = (&self.latencies, end.usage);
        latencies.ends.count(end);
        latencies.prompt_lengths.record(usage.prompt_tokens);
        latencies.output_lengths.record(usage.completion_tokens);
        if let (Some(first), Some(last)) = (self.first, self.last) {
            latencies.decode.record(last.duration_since(first));
        }
        latencies.whole.record(self.arrived.elapsed());
        latencies
            .prompt_tokens
            .increment(usage.prompt_tokens.into());
        latencies
            .cached_tokens
            .increment(usage.cached_tokens.into());
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.latencies.in_flight.decrement(1.0);
    }
}
