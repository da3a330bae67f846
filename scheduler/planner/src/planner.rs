//! The planner's state and its face; the work is in the modules named after it.

use std::vec::Drain;

use lockstep_proto::{
    request::{Output, RequestError},
    step::StepPlan,
};

use crate::{
    Busy, CacheEvent, Counters, Millis, PlannerConfig, PlannerError, RequestId,
    deadlines::Deadlines, estimate::NewTokenRatio, flight::Flight, kv::KvMemory, queue::WaitQueue,
    retry_after::AdmissionRate, slots::Slots, table::RequestTable,
};

/// Every request's state, and the next plan from it.
#[derive(Debug)]
pub struct Planner {
    pub(crate) config: PlannerConfig,
    pub(crate) now: Millis,
    pub(crate) table: RequestTable,
    pub(crate) queue: WaitQueue,
    /// Requests with a slot, most important first; rows stand in this order.
    pub(crate) running: Vec<u32>,
    pub(crate) slots: Slots,
    pub(crate) kv: KvMemory,
    pub(crate) flight: Flight,
    pub(crate) outputs: Vec<(RequestId, Output)>,
    pub(crate) counters: Counters,
    pub(crate) ratio: NewTokenRatio,
    pub(crate) pace: AdmissionRate,
    pub(crate) deadlines: Deadlines,
    pub(crate) queue_deadlines: Deadlines,
    pub(crate) arrivals: u64,
    /// `W`: slots that one decode step writes at most.
    pub(crate) alloc_len: u32,
    /// Tokens that one decode step commits at most.
    pub(crate) max_commit: u32,
    /// Reused by admission: candidates, and requests in their prefill.
    pub(crate) scratch: (Vec<u32>, Vec<u32>),
}

impl Planner {
    /// An idle planner.
    ///
    /// # Errors
    /// [`PlannerError::Config`] names the field at fault.
    pub fn new(config: PlannerConfig) -> Result<Self, PlannerError> {
        config.validate()?;
        Ok(Self {
            now: Millis(0),
            table: RequestTable::default(),
            queue: WaitQueue::default(),
            running: Vec::with_capacity(config.max_running_requests as usize),
            slots: Slots::new(config.max_running_requests),
            kv: KvMemory::new(&config),
            flight: Flight::default(),
            outputs: Vec::new(),
            counters: Counters::default(),
            ratio: NewTokenRatio::new(1000),
            pace: AdmissionRate::default(),
            deadlines: Deadlines::default(),
            queue_deadlines: Deadlines::default(),
            arrivals: 0,
            alloc_len: config.reserve.alloc_len_per_decode(config.page_size),
            max_commit: config.reserve.max_commit_per_decode(),
            scratch: Default::default(),
            config,
        })
    }

    /// Sets how careful admission is, in thousandths (SGLang's
    /// `--schedule-conservativeness` times 1000; 1000 at first): less admits
    /// more requests at once and retracts more of them.
    #[must_use]
    pub fn with_conservativeness(mut self, thousandths: u32) -> Self {
        self.ratio = NewTokenRatio::new(thousandths);
        self
    }

    /// What it was told at start.
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// Gives a sent plan's buffers back for reuse; optional.
    pub fn recycle(&mut self, plan: StepPlan) {
        self.flight.recycle(plan);
    }

    /// What happened since the last call, in order.
    pub fn take_outputs(&mut self) -> Drain<'_, (RequestId, Output)> {
        self.outputs.drain(..)
    }

    /// The engine died for good: every request ends with this error, nothing is
    /// in flight or cached any more, and the next plan is step 1 again.
    pub fn fail_all(&mut self, error: RequestError) {
        self.forget_engine();
        for index in self.table.by_arrival() {
            self.end(index, Err(error.clone()), None, Output::default());
        }
        drop(error);
    }

    /// The engine was replaced: results in flight are lost, nothing is cached,
    /// running requests queue again with what they have emitted, and the next
    /// plan is step 1 again. Clients notice a pause only.
    pub fn restart_engine(&mut self) {
        self.forget_engine();
        for index in self.table.by_arrival() {
            if self.table[index].stage == crate::table::Stage::Draining {
                self.requeue(index);
            }
        }
    }

    /// Drops the whole prefix cache; gives the number of tokens dropped.
    ///
    /// # Errors
    /// [`Busy`] while requests run or steps are in flight.
    pub fn flush_cache(&mut self) -> Result<u64, Busy> {
        if !self.running.is_empty() || self.in_flight() > 0 {
            return Err(Busy {
                running: crate::table::len_u32(&self.running),
                in_flight: u32::try_from(self.in_flight()).unwrap_or(u32::MAX),
            });
        }
        Ok(self.kv.flush())
    }

    /// Drains what entered and left the prefix cache since the last call,
    /// oldest first; empty unless `kv_events` is set.
    pub fn cache_events(&mut self) -> impl Iterator<Item = CacheEvent> + '_ {
        self.kv
            .cache
            .as_mut()
            .into_iter()
            .flat_map(|cache| cache.take_events())
    }

    /// The whole prefix cache as events, for a subscriber that comes late: to
    /// be sent before the events drained from now on. Empty unless `kv_events`
    /// is set.
    pub fn cache_snapshot(&self) -> Vec<CacheEvent> {
        self.kv
            .cache
            .as_ref()
            .map_or(Vec::new(), |cache| cache.snapshot())
    }

    /// No request is known and no step is in flight.
    pub fn is_idle(&self) -> bool {
        self.table.len() == 0 && self.in_flight() == 0
    }

    /// Steps planned and not completed.
    pub fn in_flight(&self) -> usize {
        self.flight.steps.len()
    }

    /// Running requests lose slot and pages, which exist no more.
    fn forget_engine(&mut self) {
        for index in std::mem::take(&mut self.running) {
            let entry = &mut self.table[index];
            entry.stage = crate::table::Stage::Draining;
            entry.clear_kv();
        }
        for index in self.table.by_arrival() {
            let entry = &mut self.table[index];
            entry.rows_in_flight = 0;
            entry.samples_in_flight = 0;
        }
        self.flight.reset();
        self.slots.reset();
        self.kv.reset();
    }
}
