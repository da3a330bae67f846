//! The engine's counters as messages.

use std::time::{Duration, Instant};

use lockstep_planner::{DpRankLoad, Load, SpeculationCounters, Times};
use lockstep_proto::pb::lockstep::{
    self as pb, AdapterLoad, GetLoadResponse, SpeculationLoad, StepTimes, TraceLoad,
};
use lockstep_traces::SpanCounts;
use lockstep_types::ConstraintWork;

use crate::depth_stats::DepthStats;

/// Upper bounds of the step-time histogram, microseconds. They span a small model on a CPU and
/// a long prefill of a large one.
const BOUNDS_US: [u64; 14] = [
    200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// Times of steps on the slowest DP rank, from plan taken to tokens known.
#[derive(Default)]
pub struct StepHistogram {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl StepHistogram {
    /// Counts one step.
    pub fn record(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.counts[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }
    fn wire(&self) -> StepTimes {
        StepTimes {
            bounds_us: BOUNDS_US.to_vec(),
            counts: self.counts.to_vec(),
            sum_us: self.sum_us,
        }
    }
}

/// Tokens generated per second. The value changes only when it is asked for, and at most once a
/// second, so that several askers see the same.
#[derive(Clone)]
pub struct Throughput {
    since: Instant,
    generated: u64,
    per_s: f64,
}

impl Throughput {
    /// Begins to count at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            generated: 0,
            per_s: 0.0,
        }
    }

    /// Returns the tokens per second. `generated` is the number of tokens since the start.
    pub fn at(&mut self, now: Instant, generated: u64) -> f64 {
        let passed = now.saturating_duration_since(self.since);
        if passed >= Duration::from_secs(1) {
            self.per_s = generated.saturating_sub(self.generated) as f64 / passed.as_secs_f64();
            (self.since, self.generated) = (now, generated);
        }
        self.per_s
    }
}

/// Share of the prompt tokens that the prefix cache served. The value changes only when it is
/// asked for, at most once a second, and not while no prompt comes.
#[derive(Clone)]
pub struct HitRate {
    since: Instant,
    prompt: u64,
    cached: u64,
    share: f64,
}

impl HitRate {
    /// Begins to count at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            prompt: 0,
            cached: 0,
            share: 0.0,
        }
    }

    /// Returns the share. Of `prompt` tokens since the start, `cached` were cached.
    pub fn at(&mut self, now: Instant, prompt: u64, cached: u64) -> f64 {
        let passed = now.saturating_duration_since(self.since);
        let came = prompt.saturating_sub(self.prompt);
        if passed >= Duration::from_secs(1) && came > 0 {
            self.share = cached.saturating_sub(self.cached) as f64 / came as f64;
            (self.since, self.prompt, self.cached) = (now, prompt, cached);
        }
        self.share
    }
}

/// Figures that the planner's load does not have.
pub struct EngineFigures<'a> {
    /// Counts of speculation; `None` without speculation.
    pub speculation: Option<(&'a SpeculationCounters, &'a DepthStats)>,
    /// Times of steps.
    pub steps: &'a StepHistogram,
    /// Bytes of weights and of the KV cache, summed over all ranks.
    pub memory: (u64, u64),
    /// Tokens generated per second.
    pub generated_per_s: f64,
    /// Share of prompt tokens that the prefix cache served.
    pub cache_hit_rate: f64,
    /// Number of requests that had begun and wait again.
    pub retracted_requests: u32,
    /// By rank: total time of its steps, microseconds.
    pub rank_us: Vec<u64>,
    /// Work of all leads for constraints.
    pub constraints: ConstraintWork,
    /// Counts of spans; `None` if nothing is traced.
    pub traces: Option<SpanCounts>,
    /// Loads of the adapters with names, and the number in memory.
    pub adapters: (Vec<AdapterLoad>, usize),
    /// Load of each DP rank, and the tokens that it generates per second.
    pub dp_ranks: Vec<(DpRankLoad, f64)>,
}

/// Joins the planner's counters with the other figures.
pub fn response(load: &Load, rest: &EngineFigures<'_>) -> GetLoadResponse {
    GetLoadResponse {
        running_requests: load.running_requests,
        waiting_requests: load.waiting_requests,
        kv_tokens_used: load.kv_tokens_used,
        kv_tokens_cached: load.kv_tokens_cached,
        kv_tokens_total: load.kv_tokens_total,
        kv_window_tokens_used: load.kv_window_tokens_used,
        kv_window_tokens_cached: load.kv_window_tokens_cached,
        kv_window_tokens_total: load.kv_window_tokens_total,
        kv_states_used: load.kv_states_used,
        kv_states_cached: load.kv_states_cached,
        kv_states_total: load.kv_states_total,
        leaked_states: load.leaked_states,
        cached_full_tokens_total: load.counters.cached_full_tokens,
        cached_window_tokens_total: load.counters.cached_window_tokens,
        cached_state_tokens_total: load.counters.cached_state_tokens,
        requests_total: load.counters.requests,
        generated_tokens_total: load.counters.generated_tokens,
        prompt_tokens_total: load.counters.prompt_tokens,
        cached_tokens_total: load.counters.cached_tokens,
        steps_total: load.counters.steps,
        retractions_total: load.counters.retractions,
        leaked_pages: load.leaked_pages,
        step_times: Some(rest.steps.wire()),
        aborted_requests_total: load.counters.aborted,
        failed_requests_total: load.counters.failed + load.counters.timed_out,
        queue_times: Some(times(&load.counters.queue)),
        prefill_times: Some(times(&load.counters.prefill)),
        speculation: rest.speculation.map(|(counted, depths)| SpeculationLoad {
            verify_steps: counted.verify_steps,
            draft_tokens: counted.draft_tokens,
            proposed: counted.proposed.clone(),
            accepted: counted.accepted.clone(),
            depths: Some(depths.wire()),
            forced_tokens: counted.forced_tokens,
            accepted_forced_tokens: counted.accepted_forced_tokens,
        }),
        weight_bytes: rest.memory.0,
        kv_bytes: rest.memory.1,
        waiting_tokens: load.waiting_tokens,
        generated_per_s: rest.generated_per_s,
        cache_hit_rate: rest.cache_hit_rate,
        retracted_requests: rest.retracted_requests,
        dp_ranks: rest.dp_ranks.iter().map(dp_rank).collect(),
        rank_us: rest.rank_us.clone(),
        constraints: Some(rest.constraints.into()),
        traces: rest.traces.map(|counts| TraceLoad {
            exported: counts.exported,
            dropped: counts.dropped,
            failed: counts.failed,
        }),
        adapters: rest.adapters.0.clone(),
        adapters_in_memory: u32::try_from(rest.adapters.1).unwrap_or(u32::MAX),
        // The engine does not know the ports.
        ports: Vec::new(),
        request_memory: 0,
    }
}

fn dp_rank((load, generated_per_s): &(DpRankLoad, f64)) -> pb::DpRankLoad {
    pb::DpRankLoad {
        running_requests: load.running_requests,
        kv_tokens_used: load.kv_tokens_used,
        kv_tokens_cached: load.kv_tokens_cached,
        kv_tokens_total: load.kv_tokens_total,
        prompt_tokens_total: load.counters.prompt_tokens,
        cached_tokens_total: load.counters.cached_tokens,
        generated_tokens_total: load.counters.generated_tokens,
        retractions_total: load.counters.retractions,
        generated_per_s: *generated_per_s,
        waiting_requests: load.waiting_requests,
        waiting_tokens: load.waiting_tokens,
        retracted_requests: load.retracted_requests,
    }
}

fn times(counted: &Times) -> StepTimes {
    StepTimes {
        bounds_us: Times::BOUNDS_MS.map(|ms| ms * 1000).to_vec(),
        counts: counted.counts.to_vec(),
        sum_us: counted.sum_ms.saturating_mul(1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_of_the_last_second_or_more() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut throughput = Throughput::new(start);
        let seen = [(500, 50), (2000, 100), (2900, 900), (3000, 130)];
        let rates = seen.map(|(ms, generated)| throughput.at(after(ms), generated));
        assert_eq!(rates, [0.0, 50.0, 50.0, 30.0]);
    }

    #[test]
    fn the_hit_rate_is_of_the_last_prompts() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut rate = HitRate::new(start);
        let seen = [
            (500, 10, 0),
            (2000, 100, 25),
            (2900, 200, 125),
            (3000, 200, 125),
            (9000, 200, 125),
        ];
        let rates = seen.map(|(ms, prompt, cached)| rate.at(after(ms), prompt, cached));
        assert_eq!(rates, [0.0, 0.25, 0.25, 1.0, 1.0]);
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let mut steps = StepHistogram::default();
        steps.record(Duration::from_micros(200));
        steps.record(Duration::from_micros(201));
        steps.record(Duration::from_secs(3600));
        let wire = steps.wire();
        assert_eq!(wire.counts[..2], [1, 1]);
        assert_eq!(wire.counts.last(), Some(&1));
        assert_eq!(wire.sum_us, 401 + 3_600_000_000);
    }
}
