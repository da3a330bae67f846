//! Reports of the engine: its load, its live requests, and log lines for operators.

use std::time::{Duration, Instant};

use lockstep_planner::Load;
use lockstep_proto::pb::lockstep::{GetLoadResponse, ListRequestsResponse, LiveRequest};

use super::Engine;
use crate::load::{self, EngineFigures};

/// Time between two lines about missing ranks.
pub const WAITING: Duration = Duration::from_secs(5);
/// Time between two lines about throughput, while requests are served.
const WORKING: Duration = Duration::from_secs(10);
/// Most bytes of an id in the list of requests. HTTP can abort by ids of this length; ids of
/// SGLang's gateway may be of any length.
const SHOWN_ID_BYTES: usize = 1024;

/// Periodic log lines. Holds the time of the last line, and the engine's counts at that time.
pub struct Status {
    said: Instant,
    generated: u64,
    prompt: u64,
    steps: u64,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            said: Instant::now(),
            generated: 0,
            prompt: 0,
            steps: 0,
        }
    }
}

impl Status {
    /// Logs the ranks that the start waits for.
    pub fn starting(&mut self, awaited: impl FnOnce() -> [Vec<usize>; 2]) {
        if self.due(WAITING).is_some() {
            match awaited() {
                [missing, loading] if missing.is_empty() => {
                    tracing::info!(ranks = ?loading, "waiting for workers to load and connect");
                }
                [missing, attached] => {
                    tracing::info!(?missing, ?attached, "waiting for workers to attach");
                }
            }
        }
    }

    /// Logs the ranks that an update of the weights waits for.
    pub fn updating(&mut self, awaited: impl FnOnce() -> Vec<usize>) {
        if self.due(WAITING).is_some() {
            let ranks = awaited();
            tracing::info!(?ranks, "waiting for workers to read new weights");
        }
    }

    /// Logs throughput and load, unless nothing has happened.
    pub fn serving(&mut self, load: impl FnOnce() -> Load) {
        let Some(since) = self.due(WORKING) else {
            return;
        };
        let load = load();
        let (counters, seconds) = (&load.counters, since.as_secs_f64());
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        let generated = rate(counters.generated_tokens, self.generated);
        let prompt = rate(counters.prompt_tokens, self.prompt);
        // Steps for health alone are no news.
        let served = counters.generated_tokens > self.generated
            || counters.prompt_tokens > self.prompt
            || load.running_requests + load.waiting_requests > 0;
        let worked = served && counters.steps > self.steps + 1;
        self.generated = counters.generated_tokens;
        self.prompt = counters.prompt_tokens;
        self.steps = counters.steps;
        if worked {
            let used = 100.0 * load.kv_tokens_used as f64 / load.kv_tokens_total.max(1) as f64;
            tracing::info!(
                running = load.running_requests,
                waiting = load.waiting_requests,
                "generating {generated:.0} tokens/s, taking {prompt:.0} prompt tokens/s, KV cache {used:.0} % in use"
            );
        }
    }

    /// Returns the time since the last line, if it is time for another one.
    fn due(&mut self, every: Duration) -> Option<Duration> {
        let since = self.said.elapsed();
        (since >= every).then(|| {
            self.said = Instant::now();
            since
        })
    }
}

impl Engine {
    /// Returns the engine's counters and load.
    pub(super) fn load(&mut self) -> GetLoadResponse {
        let speculates = self.config.speculation.enabled();
        let load = self.planner.load();
        let generated = load.counters.generated_tokens;
        let now = Instant::now();
        let ranks = self.planner.dp_rank_loads().into_iter();
        let ranks = ranks.zip(&mut self.throughputs);
        let ranks = ranks.map(|(load, throughput)| {
            let generated = load.counters.generated_tokens;
            (load, throughput.at(now, generated))
        });
        let (prompt, cached) = (load.counters.prompt_tokens, load.counters.cached_tokens);
        let rest = EngineFigures {
            cache_hit_rate: self.hit_rate.at(now, prompt, cached),
            dp_ranks: ranks.collect(),
            adapters: (
                self.adapters
                    .loads(|place| self.planner.adapter_requests(place)),
                self.adapters.in_memory(),
            ),
            speculation: speculates.then(|| (self.planner.speculation(), &self.depths)),
            steps: &self.steps,
            memory: self.group.memory(),
            rank_us: self.group.step_us(),
            constraints: self.group.constraint_work(),
            traces: self.traces.counts(),
            generated_per_s: self.throughput.at(now, generated),
            retracted_requests: self.planner.retracted_requests(),
        };
        load::response(&load, &rest)
    }

    /// Lists at most `limit` of the requests that have not ended, by the ids that clients know.
    pub(super) fn live_requests(&self, limit: usize) -> ListRequestsResponse {
        let live = self.planner.live_requests();
        let total = u32::try_from(live.len()).unwrap_or(u32::MAX);
        let told = |of: lockstep_planner::LiveRequest| {
            // The request may have ended, with its last output not yet delivered.
            let trace_id = self.sinks.trace_id(of.id)?;
            let shown = trace_id.floor_char_boundary(SHOWN_ID_BYTES);
            Some(LiveRequest {
                trace_id: trace_id[..shown].to_owned(),
                running: of.dp_rank.is_some(),
                retracted: of.retracted,
                age_ms: of.age_ms,
                prompt_tokens: of.prompt_tokens,
                output_tokens: of.output_tokens,
                max_new_tokens: of.max_new_tokens,
                cached_tokens: of.cached_tokens,
                dp_rank: of.dp_rank,
            })
        };
        ListRequestsResponse {
            requests: live.into_iter().filter_map(told).take(limit).collect(),
            total,
        }
    }
}
