//! The running requests: their slots, the rows they add to each step, and
//! the steps in flight.

use std::sync::Arc;

use lockstep_adaptive::DepthRange;
use lockstep_types::{
    sampling::LogprobParams,
    step::{SlotOpen, StepPlan, StepResult},
};

use crate::{
    IntegrityError, PlannerConfig, PlannerError,
    error::total,
    kv::Kv,
    request::{RequestState, RequestTable, Stage, len_u32},
};
use depth::Depth;
use flight::{Flight, StepInFlight};
use slots::Slots;

mod depth;
mod flight;
mod rows;
mod slots;

pub(crate) use flight::{RowInFlight, StepBuilder};
#[cfg(test)]
pub(crate) use rows::Grant;

/// Running requests and the steps they are in.
#[derive(Debug)]
pub(crate) struct Batch {
    config: Arc<PlannerConfig>,
    /// Requests with a slot, most important first; rows stand in this order.
    running: Vec<u32>,
    slots: Slots,
    flight: Flight,
    depth: Depth,
    #[cfg(test)]
    pub grant: Grant,
}

impl Batch {
    pub fn new(config: Arc<PlannerConfig>) -> Self {
        Self {
            running: Vec::with_capacity(config.max_running_requests as usize),
            slots: Slots::new(config.max_running_requests),
            flight: Flight::default(),
            depth: Depth::new(&config),
            #[cfg(test)]
            grant: Grant::Exact,
            config,
        }
    }

    /// Running requests, most important first.
    pub fn running(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + '_ {
        self.running.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The least important running request.
    pub fn last(&self) -> Option<u32> {
        self.running.last().copied()
    }

    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    pub fn set_draft_steps(&mut self, steps: u32) {
        self.depth.set_most(steps.min(self.config.reserve.steps));
    }

    pub fn set_depth_range(&mut self, range: DepthRange) {
        self.depth.set_range(range);
    }

    /// Draft steps of the step that is being planned.
    pub fn draft_steps(&self) -> u32 {
        self.depth.steps()
    }

    /// Gives a request a slot, with the prefix that is matched already; false
    /// if none is free.
    pub fn open(
        &mut self,
        requests: &mut RequestTable,
        index: u32,
        step: &mut StepBuilder,
    ) -> bool {
        let Some(slot) = self.slots.take() else {
            return false;
        };
        let at = self.position(requests, index);
        self.running.insert(at, index);
        let request = &mut requests[index];
        request.stage = Stage::Running;
        request.slot = slot;
        request.prefill_end = request.len();
        // The decode loop then grows these lists without allocating, as a rule.
        let more = request.remaining().min(1024) as usize;
        request.tokens.reserve(more);
        request
            .kv
            .reserve_pages(more / self.config.page_size as usize + 2);
        let depth = request.max_depth as usize;
        request.rest.speculation.proposed.reserve(depth);
        request.rest.speculation.accepted.reserve(depth);
        step.open(SlotOpen {
            slot,
            token_ids: request.tokens.clone(),
            prompt_len: request.prompt_len,
            cached_len: request.kv.committed(),
            sampling: request.rest.sampling.clone(),
            logprobs: LogprobParams {
                prompt_start: request.prompt_logprobs_from(),
                ..request.rest.logprobs
            },
            max_draft_steps: request.rest.max_draft_steps,
        });
        true
    }

    /// Frees slot and pages of a running request. Results in flight may still come.
    pub fn close(&mut self, requests: &mut RequestTable, kv: &mut Kv, index: u32) {
        let at = self.position(requests, index);
        debug_assert_eq!(self.running[at], index, "the running list is ranked");
        self.running.remove(at);
        let request = &mut requests[index];
        request.stage = Stage::Draining;
        self.slots.close(request.slot);
        kv.release(request);
    }

    /// Where a request stands, or would, among the running ones.
    fn position(&self, requests: &RequestTable, index: u32) -> usize {
        let rank = requests[index].rank();
        self.running
            .partition_point(|other| requests[*other].rank() < rank)
    }

    /// The engine is gone: nobody has a slot and nothing is in flight.
    pub fn reset(&mut self, requests: &mut RequestTable) {
        for index in self.running.drain(..) {
            requests[index].stage = Stage::Draining;
        }
        for request in requests.iter_mut() {
            request.rows_in_flight = 0;
            request.samples_in_flight = 0;
        }
        self.flight.reset();
        self.slots.reset();
        self.depth.reset();
    }
}

impl Batch {
    /// An empty step; `None` when enough are in flight.
    pub fn begin_step(&mut self, requests: &RequestTable) -> Option<StepBuilder> {
        if self.flight.len() >= self.config.max_in_flight() {
            return None;
        }
        let decodes = |index: &&u32| requests[**index].decodes();
        let running = &self.running;
        self.depth
            .begin(|| running.iter().filter(decodes).count() as u32);
        Some(self.flight.begin())
    }

    /// Sends a step off.
    pub fn launch(&mut self, step: StepBuilder) -> StepPlan {
        let depth = self.depth.launch(|| step.samples());
        self.flight.launch(step, depth, &mut self.slots)
    }

    /// Drops a step that stayed empty.
    pub fn discard(&mut self, step: StepBuilder) {
        self.flight.discard(step);
    }

    /// Steps planned and not completed.
    pub fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Takes the oldest step out, if the result is its own and fits it.
    pub fn take_step(&mut self, result: &StepResult) -> Result<StepInFlight, PlannerError> {
        let step = self.flight.take(result)?;
        if let Some(depth) = result.agreed_depth {
            self.depth.decide(result.step, depth);
        }
        Ok(step)
    }

    /// Keeps a completed step's buffers for later.
    pub fn recycle(&mut self, step: StepInFlight) {
        self.flight.recycle(step);
    }

    /// Keeps a sent plan's buffers for later.
    pub fn recycle_plan(&mut self, plan: StepPlan) {
        self.flight.recycle_plan(plan);
    }

    /// Checks slots and rows against the requests.
    pub fn check(&self, requests: &RequestTable) -> Result<(), IntegrityError> {
        let mut holders = vec![0; self.slots.count() as usize];
        let held = self.running().map(|index| requests[index].slot);
        for slot in self.slots.iter_free().chain(held) {
            holders[slot as usize] += 1;
        }
        for (slot, count) in (0..).zip(holders) {
            if count != 1 {
                return Err(IntegrityError::Slot {
                    slot,
                    holders: count,
                });
            }
        }
        let running = requests
            .iter()
            .filter(|(_, request)| request.stage == Stage::Running);
        let running = running.count() as u64;
        total(
            "running requests",
            u64::from(len_u32(&self.running)),
            running,
        )
    }

    /// Checks the rows in flight of one request.
    pub fn check_request(&self, index: u32, request: &RequestState) -> Result<(), &'static str> {
        let own = |row: &&RowInFlight| row.index == index && row.arrival == request.arrival;
        let rows = self.flight.rows().filter(own);
        let (rows, samples) = rows.fold((0, 0), |(rows, samples), row| {
            (rows + 1, samples + u32::from(row.sample))
        });
        if (rows, samples) != (request.rows_in_flight, request.samples_in_flight) {
            Err("rows in flight miscounted")
        } else if request.stage == Stage::Draining && rows == 0 {
            Err("drains without rows in flight")
        } else {
            Ok(())
        }
    }
}
