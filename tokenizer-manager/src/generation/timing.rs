//! Times at which a choice's tokens arrive.

use std::sync::Arc;

use tokio::time::Instant;

use super::End;
use crate::{
    error::ApiError, metrics::Latencies, request_stats::RequestStats, request_trace::ChoiceTrace,
};

/// Clock and metrics of one choice.
#[derive(Debug)]
pub(super) struct Timing {
    latencies: Latencies,
    arrived: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    stats: Option<Arc<RequestStats>>,
    trace: Option<ChoiceTrace>,
}

impl Timing {
    pub(super) fn new(latencies: Latencies, arrived: Instant, trace: Option<ChoiceTrace>) -> Self {
        latencies.in_flight.increment(1.0);
        Self {
            latencies,
            arrived,
            first: None,
            last: None,
            stats: RequestStats::current(),
            trace,
        }
    }

    /// Records `tokens` new tokens. Tokens that arrive together share the time since
    /// the last arrival equally.
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
        if let Some(trace) = &mut self.trace {
            trace.output(tokens);
        }
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Returns the time at which detokenizing starts; `None` if the choice is not
    /// traced.
    pub(super) fn detokenizing(&self) -> Option<Instant> {
        self.trace.as_ref().map(|_| Instant::now())
    }

    /// Records that detokenizing took the time since `since`.
    pub(super) fn detokenized(&mut self, since: Option<Instant>) {
        if let (Some(trace), Some(since)) = (&mut self.trace, since) {
            trace.detokenized(since.elapsed());
        }
    }

    /// Records that the choice failed.
    pub(super) fn failed(&mut self, error: &ApiError) {
        if let Some(trace) = &mut self.trace {
            trace.fail(error);
        }
    }

    /// Records that the choice ended well.
    pub(super) fn end(&mut self, end: &End) {
        if let Some(trace) = &mut self.trace {
            trace.end(end.reason, &end.usage);
        }
        let (latencies, usage) = (&self.latencies, end.usage);
        latencies.ends.count(end.reason);
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
