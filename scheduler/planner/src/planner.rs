//! The planner's state and its face; the work is in the modules named after it.

use std::vec::Drain;

use lockstep_types::{
    request::{Output, RequestError},
    step::StepPlan,
};

use crate::{
    Busy, CacheEvent, Counters, Millis, PlannerConfig, PlannerError, RequestId,
    SpeculationCounters,
    deadlines::Deadlines,
    estimate::NewTokenRatio,
    flight::Flight,
    kv::KvMemory,
    queue::WaitQueue,
    retry_after::AdmissionRate,
    slots::Slots,
    table::{RequestTable, Stage, len_u32},
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
    /// Draft steps of the next plans.
    pub(crate) draft_steps: u32,
    /// Nothing new is admitted.
    pub(crate) held: bool,
    pub(crate) speculation: SpeculationCounters,
    /// What decode rows are granted.
    #[cfg(test)]
    pub(crate) grant: crate::decode::Grant,
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
            draft_steps: config.reserve.steps,
            held: false,
            speculation: SpeculationCounters::new(config.reserve.steps),
            #[cfg(test)]
            grant: crate::decode::Grant::Exact,
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

    /// Lets decode rows draft so many steps from the next plan on, as far as
    /// their requests allow; 0 = none. At first, and at the most, those of
    /// [`PlannerConfig::reserve`].
    pub fn set_draft_steps(&mut self, steps: u32) {
        self.draft_steps = steps.min(self.config.reserve.steps);
    }

    /// What speculation brought since the start.
    pub fn speculation(&self) -> &SpeculationCounters {
        &self.speculation
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
            if self.table[index].stage == Stage::Draining {
                self.requeue(index);
            }
        }
    }

    /// Holds new requests back, or lets them in again: while held they queue,
    /// and those that have begun go on to their ends. Once
    /// [`flush_cache`](Self::flush_cache) succeeds nothing is left that the
    /// weights of before have touched.
    pub fn hold_admission(&mut self, held: bool) {
        self.held = held;
    }

    /// Drops the whole prefix cache; gives the number of tokens dropped.
    ///
    /// # Errors
    /// [`Busy`] while requests run or steps are in flight; while admission is
    /// held, also when a request that has begun waits to go on.
    pub fn flush_cache(&mut self) -> Result<u64, Busy> {
        let mut running = len_u32(&self.running);
        if self.held {
            let begun = self.queue.iter().filter(|at| self.table[*at].retracted);
            running += u32::try_from(begun.count()).unwrap_or(u32::MAX);
        }
        if running > 0 || self.in_flight() > 0 {
            return Err(Busy {
                running,
                in_flight: u32::try_from(self.in_flight()).unwrap_or(u32::MAX),
            });
        }
        Ok(self.kv.flush())
    }

    /// Drains what entered and left the prefix cache since the last call,
    /// oldest first; empty unless `kv_events` is set.
    pub fn cache_events(&mut self) -> impl Iterator<Item = CacheEvent> + '_ {
        let cache = self.kv.cache.as_mut();
        cache.into_iter().flat_map(|cache| cache.take_events())
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
            entry.stage = Stage::Draining;
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
