//! What the engine tells of itself: its load, and lines for operators.

use std::time::{Duration, Instant};

use lockstep_planner::Load;
use lockstep_proto::pb::lockstep::GetLoadResponse;

use super::Engine;
use crate::load::{self, Rest};

/// Between two lines about ranks that are missing.
pub const WAITING: Duration = Duration::from_secs(5);
/// Between two lines about the work, while there is some.
const WORKING: Duration = Duration::from_secs(10);

/// What was said last.
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
    /// Names the ranks that the start waits for.
    pub fn starting(&mut self, awaited: impl FnOnce() -> Vec<usize>) {
        if self.due(WAITING).is_some() {
            let ranks = awaited();
            tracing::info!(?ranks, "waiting for workers to attach and load");
        }
    }

    /// Names the ranks that an update of the weights waits for.
    pub fn updating(&mut self, awaited: impl FnOnce() -> Vec<usize>) {
        if self.due(WAITING).is_some() {
            let ranks = awaited();
            tracing::info!(?ranks, "waiting for workers to read new weights");
        }
    }

    /// Tells throughput and load, unless nothing has happened.
    pub fn serving(&mut self, load: impl FnOnce() -> Load) {
        let Some(since) = self.due(WORKING) else {
            return;
        };
        let load = load();
        let (counters, seconds) = (&load.counters, since.as_secs_f64());
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        let generated = rate(counters.generated_tokens, self.generated);
        let prompt = rate(counters.prompt_tokens, self.prompt);
        let worked = counters.steps > self.steps + 1;
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

    /// Whether it is time for a line again, and how long the last one is ago.
    fn due(&mut self, every: Duration) -> Option<Duration> {
        let since = self.said.elapsed();
        (since >= every).then(|| {
            self.said = Instant::now();
            since
        })
    }
}

impl Engine {
    /// What it has done and holds now.
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
        let rest = Rest {
            dp_ranks: ranks.collect(),
            speculation: speculates.then(|| (self.planner.speculation(), &self.depths)),
            steps: &self.steps,
            memory: self.group.memory(),
            generated_per_s: self.throughput.at(now, generated),
            retracted_requests: self.planner.retracted_requests(),
        };
        load::response(&load, &rest)
    }
}
