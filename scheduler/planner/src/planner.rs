//! The planner joins its three owners: [`Admission`] knows who waits,
//! [`Batch`] who runs and what is on its way, [`Kv`] where the pages are.

use std::{sync::Arc, vec::Drain};

use lockstep_adaptive::DepthRange;
use lockstep_types::{
    request::{ErrorKind, FinishReason, Output, Request, RequestError},
    step::StepPlan,
};

use crate::{
    Busy, Counters, Millis, PlannerConfig, PlannerError, RequestId, SpeculationCounters,
    admission::Admission,
    batch::{Batch, StepBuilder},
    kv::Kv,
    request::{RequestTable, Stage},
};

mod inspect;
mod results;

/// Every request's state, and the next plan from it.
#[derive(Debug)]
pub struct Planner {
    config: Arc<PlannerConfig>,
    requests: RequestTable,
    admission: Admission,
    batch: Batch,
    kv: Kv,
    outputs: Vec<(RequestId, Output)>,
    counters: Counters,
    speculation: SpeculationCounters,
}

impl Planner {
    /// An idle planner.
    ///
    /// # Errors
    /// [`PlannerError::Config`] names the field at fault.
    pub fn new(config: PlannerConfig) -> Result<Self, PlannerError> {
        config.validate()?;
        let config = Arc::new(config);
        Ok(Self {
            requests: RequestTable::default(),
            admission: Admission::new(config.clone()),
            batch: Batch::new(config.clone()),
            kv: Kv::new(&config),
            outputs: Vec::new(),
            counters: Counters::default(),
            speculation: SpeculationCounters::new(config.reserve.steps),
            config,
        })
    }

    /// Sets how careful admission is, in thousandths (SGLang's
    /// `--schedule-conservativeness` times 1000; 1000 at first): less admits
    /// more requests at once and retracts more of them.
    #[must_use]
    pub fn with_conservativeness(mut self, thousandths: u32) -> Self {
        self.admission.set_conservativeness(thousandths);
        self
    }

    /// Lets decode rows draft so many steps at the most from the next plan on, as
    /// far as what is agreed and their requests allow; 0 = none. At first, and at
    /// the most, those of [`PlannerConfig::reserve`].
    pub fn set_draft_steps(&mut self, steps: u32) {
        self.batch.set_draft_steps(steps);
    }

    /// What the workers may agree on from the next plan on, where the depth
    /// adapts.
    pub fn set_depth_range(&mut self, range: DepthRange) {
        self.batch.set_depth_range(range);
    }

    /// Queues a request.
    ///
    /// # Errors
    /// `Invalid` when it can never run here; `Overloaded`, with a time to try
    /// again, when a queue is full.
    pub fn submit(
        &mut self,
        now: Millis,
        id: RequestId,
        request: Request,
    ) -> Result<(), RequestError> {
        self.submit_choice(now, id, None, request)
    }

    /// Queues a request that is one of several choices of the client request
    /// `parent`. They share what one request gets while others wait.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_choice(
        &mut self,
        now: Millis,
        id: RequestId,
        parent: Option<RequestId>,
        request: Request,
    ) -> Result<(), RequestError> {
        let queued = self.queue(now, id, parent, request);
        if matches!(&queued, Err(error) if error.kind == ErrorKind::Overloaded) {
            self.counters.rejected += 1;
        }
        queued?;
        self.counters.requests += 1;
        Ok(())
    }

    /// Queues a request of the engine's own, which no client asked for: its steps
    /// count, and nothing else of it.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_probe(
        &mut self,
        now: Millis,
        id: RequestId,
        request: Request,
    ) -> Result<(), RequestError> {
        let index = self.queue(now, id, None, request)?;
        self.requests[index].rest.is_probe = true;
        Ok(())
    }

    fn queue(
        &mut self,
        now: Millis,
        id: RequestId,
        parent: Option<RequestId>,
        request: Request,
    ) -> Result<u32, RequestError> {
        self.admission.advance(now);
        if self.requests.find(id).is_some() {
            return Err(RequestError {
                param: Some("request".into()),
                ..RequestError::new(ErrorKind::Invalid, format!("request {} is known", id.0))
            });
        }
        let free_slots = self.batch.free_slots();
        let request = self.admission.accept(id, parent, request, free_slots)?;
        let index = self.requests.insert(request);
        self.admission.enqueue(index, &self.requests[index]);
        Ok(index)
    }

    /// The next step: decode rows first, then prompts within the token budget,
    /// those under way before new ones. `None` when there is nothing to do or
    /// enough is in flight.
    pub fn plan(&mut self) -> Option<StepPlan> {
        if self.batch.is_empty() && self.admission.is_empty() {
            return None;
        }
        let mut step = self.batch.begin_step(&self.requests)?;
        self.preempt();
        self.make_room_for_decodes();
        let Self {
            requests,
            admission,
            batch,
            kv,
            counters,
            ..
        } = self;
        batch.plan_decodes(requests, kv, &mut step);
        batch.plan_prefills(requests, kv, &mut step);
        admission.admit(requests, batch, kv, counters, &mut step);
        if step.is_empty() && batch.in_flight() == 0 {
            self.unblock(&mut step);
        }
        if step.is_empty() {
            self.batch.discard(step);
            return None;
        }
        self.admission.step_planned();
        let plan = self.batch.launch(step);
        self.counters.count_plan(&plan);
        Some(plan)
    }

    /// Displaces running requests in favour of a waiting one, until it fits.
    fn preempt(&mut self) {
        let (requests, batch) = (&self.requests, &self.batch);
        let preemption = self.admission.preemption(requests, batch, &mut self.kv);
        let Some((head, victims)) = preemption else {
            return;
        };
        for victim in victims {
            let (requests, batch) = (&self.requests, &self.batch);
            let kv = &mut self.kv;
            if self.admission.has_room_for(head, requests, batch, kv) {
                return;
            }
            self.retract(victim);
            self.counters.preemptions += 1;
        }
    }

    /// Retracts from the end of the ranking until all decode rows fit.
    fn make_room_for_decodes(&mut self) {
        while self.batch.decode_pages(&self.requests, &self.kv) > self.kv.available()
            && self.batch.len() > 1
            && let Some(last) = self.admission.first_to_yield(&self.requests, &self.batch)
        {
            self.pages_ran_out();
            self.retract(last);
        }
    }

    /// Nothing is in flight and nothing could be planned although requests run:
    /// prompts hold all pages half way. The last ones give theirs back until
    /// the first can go on.
    fn unblock(&mut self, step: &mut StepBuilder) {
        while step.is_empty()
            && let Some(last) = self.batch.last()
        {
            if self.batch.len() == 1 {
                // Submission refuses what does not fit alone: the books are wrong.
                let error = RequestError::new(
                    ErrorKind::Internal,
                    "the KV pool has no page for the only running request",
                );
                self.end(last, Err(error), None, Output::default());
                return;
            }
            self.pages_ran_out();
            self.retract(last);
            self.batch
                .plan_prefills(&mut self.requests, &mut self.kv, step);
        }
    }

    /// Takes slot and pages from a running request and queues it again. What it
    /// emitted stays emitted: its tokens become the prompt of its next
    /// admission, and positions count on. Results in flight are still taken
    /// before it queues.
    fn retract(&mut self, index: u32) {
        self.batch.close(&mut self.requests, &mut self.kv, index);
        self.admission.left_slot(&self.requests[index]);
        self.counters.retractions += 1;
        let request = &mut self.requests[index];
        if request.rows_in_flight == 0 {
            self.admission.requeue(index, request);
        }
    }

    /// Requests want more pages than was expected.
    fn pages_ran_out(&mut self) {
        let running = self.batch.running().map(|index| &self.requests[index]);
        self.admission.pages_ran_out(running);
    }

    /// The one way out: frees whatever the request holds and emits its last
    /// output. Rows still in flight find the request gone and are ignored.
    fn end(
        &mut self,
        index: u32,
        outcome: Result<FinishReason, RequestError>,
        matched_token: Option<u32>,
        mut output: Output,
    ) {
        if self.requests[index].stage == Stage::Running {
            self.batch.close(&mut self.requests, &mut self.kv, index);
            self.admission.left_slot(&self.requests[index]);
        }
        let Some(request) = self.requests.remove(index) else {
            return;
        };
        self.admission.forget(index, &request);
        if !request.rest.is_probe {
            self.counters.count_end(&outcome);
        }
        let id = request.id;
        output.finish = Some(request.finish(outcome, matched_token));
        self.outputs.push((id, output));
    }

    /// Ends a request with an Abort output; unknown ids are harmless.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(index) = self.requests.find(id) {
            self.end(index, Ok(FinishReason::Abort), None, Output::default());
        }
    }

    /// Ends a request with a Stop output, because its client has all that it
    /// wants; unknown ids are harmless.
    pub fn stop(&mut self, id: RequestId) {
        if let Some(index) = self.requests.find(id) {
            self.end(index, Ok(FinishReason::Stop), None, Output::default());
        }
    }

    /// Ends requests whose time is over.
    pub fn tick(&mut self, now: Millis) {
        self.admission.advance(now);
        while let Some((index, error)) = self.admission.timed_out() {
            self.end(index, Err(error), None, Output::default());
        }
    }

    /// The engine died for good: every request ends with this error, nothing is
    /// in flight or cached any more, and the next plan is step 1 again.
    pub fn fail_all(&mut self, error: RequestError) {
        self.forget_engine();
        for index in self.requests.by_arrival() {
            self.end(index, Err(error.clone()), None, Output::default());
        }
        drop(error);
    }

    /// The engine was replaced: results in flight are lost, nothing is cached,
    /// running requests queue again with what they have emitted, and the next
    /// plan is step 1 again. Clients notice a pause only.
    pub fn restart_engine(&mut self) {
        self.forget_engine();
        for index in self.requests.by_arrival() {
            let request = &mut self.requests[index];
            if request.stage == Stage::Draining {
                self.admission.requeue(index, request);
            }
        }
    }

    /// Running requests lose slot and pages, which exist no more.
    fn forget_engine(&mut self) {
        self.batch.reset(&mut self.requests);
        self.admission.reset_slots();
        let holders = self.requests.iter_mut().map(|request| &mut request.kv);
        self.kv.reset(holders);
    }

    /// Holds new requests back, or lets them in again: while held they queue,
    /// and those that have begun go on to their ends. Once
    /// [`flush_cache`](Self::flush_cache) succeeds nothing is left that the
    /// weights of before have touched.
    pub fn hold_admission(&mut self, held: bool) {
        self.admission.hold(held);
    }

    /// Drops the whole prefix cache; gives the number of tokens dropped.
    ///
    /// # Errors
    /// [`Busy`] while requests run or steps are in flight; while admission is
    /// held, also when a request that has begun waits to go on.
    pub fn flush_cache(&mut self) -> Result<u64, Busy> {
        let mut running = self.batch.len();
        if self.admission.is_held() {
            let begun = |index: &u32| self.requests[*index].retracted;
            running += self.admission.waiting().filter(begun).count();
        }
        if running > 0 || self.in_flight() > 0 {
            return Err(Busy {
                running: u32::try_from(running).unwrap_or(u32::MAX),
                in_flight: u32::try_from(self.in_flight()).unwrap_or(u32::MAX),
            });
        }
        Ok(self.kv.flush())
    }

    /// What it was told at start.
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// Gives a sent plan's buffers back for reuse; optional.
    pub fn recycle(&mut self, plan: StepPlan) {
        self.batch.recycle_plan(plan);
    }

    /// What happened since the last call, in order.
    pub fn take_outputs(&mut self) -> Drain<'_, (RequestId, Output)> {
        self.outputs.drain(..)
    }

    /// No request is known and no step is in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.len() == 0 && self.in_flight() == 0
    }

    /// Steps planned and not completed.
    pub fn in_flight(&self) -> usize {
        self.batch.in_flight()
    }
}

#[cfg(test)]
mod tests;
