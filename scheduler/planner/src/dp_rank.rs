//! State of one DP rank: its running requests, its KV memory, and the memory that its requests
//! are expected to want.

use std::sync::Arc;

use crate::{
    DpRankCounters, IntegrityError, PlannerConfig,
    batch::Batch,
    kv::{Kv, KvUsage},
    request::{RequestState, RequestTable, Stage},
};
use new_token_ratio::NewTokenRatio;

mod admit;
mod new_token_ratio;
mod room;

pub(crate) use admit::Verdict;

/// One DP rank. Without data-parallel attention there is one.
#[derive(Debug)]
pub(crate) struct DpRank {
    config: Arc<PlannerConfig>,
    pub batch: Batch,
    pub kv: Kv,
    /// This DP rank's part of the planner's counters.
    pub counters: DpRankCounters,
    ratio: NewTokenRatio,
    /// Running requests whose prompt is not yet all in the cache. Valid while requests are
    /// admitted.
    prefilling: Vec<u32>,
    /// Pages that running requests are expected to want still. Valid while requests are
    /// admitted.
    future: u32,
}

impl DpRank {
    pub fn new(config: &Arc<PlannerConfig>) -> Self {
        Self {
            config: config.clone(),
            batch: Batch::new(config.clone()),
            kv: Kv::new(config),
            counters: DpRankCounters::default(),
            ratio: NewTokenRatio::new(1000),
            prefilling: Vec::new(),
            future: 0,
        }
    }

    pub fn set_conservativeness(&mut self, thousandths: u32) {
        self.ratio = NewTokenRatio::new(thousandths);
    }

    /// Returns the load for comparisons: first the running requests, then the pages that no
    /// other request could have.
    pub fn load(&self) -> (usize, u32) {
        (self.batch.len(), self.kv.in_use())
    }

    /// Adds the rows of running requests to the step: decodes first, then prompts.
    pub fn plan_running(&mut self, requests: &mut RequestTable) {
        self.batch.plan_decodes(requests, &mut self.kv);
        self.plan_prefills(requests);
    }

    /// Continues prompts while budget and pages last.
    pub fn plan_prefills(&mut self, requests: &mut RequestTable) {
        self.batch.plan_prefills(requests, &mut self.kv);
    }

    /// Returns true if the next decode rows need more pages than are available.
    pub fn lacks_pages(&self, requests: &RequestTable) -> bool {
        self.batch.decode_pages(requests, &self.kv) > self.kv.available()
    }

    /// Notes that a step is sent. If requests of this DP rank run in it, they are expected to
    /// want a little less from now on.
    pub fn step_planned(&mut self) {
        if !self.batch.next.is_empty() {
            self.ratio.decay();
        }
    }

    /// Raises the expectation, because requests want more pages than was expected.
    pub fn pages_ran_out(&mut self, requests: &RequestTable) {
        let running = self.batch.running().map(|index| &requests[index]);
        let shown = running.map(|request| (request.emitted(), request.max_new));
        self.ratio.raise(shown);
    }

    /// Takes slot and pages from a running request. Results in flight may still come.
    pub fn close(&mut self, requests: &mut RequestTable, index: u32) {
        self.batch.close(requests, &mut self.kv, index);
    }

    /// Forgets all slots and pages, because the engine is gone.
    pub fn reset(&mut self, requests: &mut RequestTable) {
        self.batch.reset(requests);
        self.kv.reset();
    }

    /// Checks pages, slots and requests of DP rank `at`.
    pub fn check(&self, requests: &RequestTable, at: u32) -> Result<(), IntegrityError> {
        let held = self.running(requests).map(|request| &request.kv);
        self.kv.check(&held)?;
        let all = requests.iter().map(|(_, request)| request);
        let runs = |request: &&RequestState| request.stage == Stage::Running;
        let here = all.filter(runs).filter(|request| request.dp_rank == at);
        let here = here.count() as u64;
        self.batch.check(requests, here)?;
        for request in self.running(requests) {
            let named = request.rest.data_parallel_rank;
            if request.dp_rank != at || named.is_some_and(|named| named != at) {
                return Err(IntegrityError::Request {
                    id: request.id.0,
                    message: format!("runs in DP rank {at}, bound to {}", request.dp_rank),
                });
            }
        }
        Ok(())
    }

    /// Returns the holders of this DP rank's pages.
    pub fn kv_usage(&self, requests: &RequestTable) -> KvUsage {
        let running = self.running(requests);
        self.kv.usage(running.map(|request| &request.kv))
    }

    /// Returns the requests with a slot.
    pub fn running<'a>(
        &'a self,
        requests: &'a RequestTable,
    ) -> impl Iterator<Item = &'a RequestState> + Clone {
        self.batch.running().map(|index| &requests[index])
    }
}
