//! The planner joins the owners of its state: [`Admission`] owns the queue, [`Steps`] the steps
//! in flight, and each [`DpRank`] its running requests and pages.

use std::{sync::Arc, vec::Drain};

use lockstep_adaptive::DepthRange;
use lockstep_types::{
    request::{ErrorKind, FinishReason, Output, Request, RequestError},
    step::StepPlan,
};

use crate::{
    Busy, Counters, Millis, PlannerConfig, PlannerError, RequestId, SpeculationCounters,
    adapters::AdapterUse,
    admission::Admission,
    dp_rank::DpRank,
    request::{RequestState, RequestTable, Stage},
    steps::Steps,
};

mod inspect;
mod live;
mod plan;
mod results;

pub use live::LiveRequest;

/// State of every request, from which the next plan is made.
#[derive(Debug)]
pub struct Planner {
    config: Arc<PlannerConfig>,
    requests: RequestTable,
    admission: Admission,
    ranks: Vec<DpRank>,
    steps: Steps,
    outputs: Vec<(RequestId, Output)>,
    counters: Counters,
    adapters: AdapterUse,
    /// Number of the engine's own requests that have not ended.
    probes: u32,
    speculation: SpeculationCounters,
}

impl Planner {
    /// Makes an idle planner.
    ///
    /// # Errors
    /// [`PlannerError::Config`] names the field at fault.
    pub fn new(config: PlannerConfig) -> Result<Self, PlannerError> {
        config.validate()?;
        let config = Arc::new(config);
        Ok(Self {
            requests: RequestTable::default(),
            admission: Admission::new(config.clone()),
            ranks: (0..config.dp_size).map(|_| DpRank::new(&config)).collect(),
            steps: Steps::new(&config),
            outputs: Vec::new(),
            counters: Counters::default(),
            adapters: AdapterUse::default(),
            probes: 0,
            speculation: SpeculationCounters::new(config.reserve.steps),
            config,
        })
    }

    /// Sets how careful admission is, in thousandths (SGLang's `--schedule-conservativeness`
    /// times 1000). The default is 1000. A smaller value admits more requests at once and
    /// retracts more of them.
    #[must_use]
    pub fn with_conservativeness(mut self, thousandths: u32) -> Self {
        for rank in &mut self.ranks {
            rank.set_conservativeness(thousandths);
        }
        self
    }

    /// Sets the most draft steps of decode rows from the next plan on; 0 = none. The agreed
    /// depth and the requests may allow fewer. The default, and the most, are the steps of
    /// [`PlannerConfig::reserve`].
    pub fn set_draft_steps(&mut self, steps: u32) {
        self.steps.set_draft_steps(steps);
    }

    /// Sets the depths that the workers may agree on from the next plan on, if the depth
    /// adapts.
    pub fn set_depth_range(&mut self, range: DepthRange) {
        self.steps.set_depth_range(range);
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

    /// Queues a request that is one of several choices of the client request `parent`. While
    /// other requests wait, the choices share the slots that one request would get.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit).
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

    /// Queues a request of the engine's own. Only its steps are counted: nothing else of it
    /// shows in loads and counters.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit).
    pub fn submit_probe(
        &mut self,
        now: Millis,
        id: RequestId,
        request: Request,
    ) -> Result<(), RequestError> {
        let index = self.queue(now, id, None, request)?;
        self.requests[index].rest.is_probe = true;
        self.probes += 1;
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
        let request = self.admission.accept(id, parent, request, &self.ranks)?;
        self.adapters.begin(request.rest.generation.adapter);
        let index = self.requests.insert(request);
        self.admission.enqueue(index, &self.requests[index]);
        Ok(index)
    }

    /// Takes slot and pages from a running request and queues it again. Tokens that it emitted
    /// stay emitted: they become part of the prompt at its next admission, and positions count
    /// on. Results in flight are still taken before it queues.
    fn retract(&mut self, index: u32) {
        self.close(index);
        let request = &mut self.requests[index];
        self.counters.retractions += 1;
        self.ranks[request.dp_rank as usize].counters.retractions += 1;
        if request.rows_in_flight == 0 {
            self.admission.requeue(index, request);
        }
    }

    /// Takes slot and pages from a running request.
    fn close(&mut self, index: u32) {
        let rank = &mut self.ranks[self.requests[index].dp_rank as usize];
        rank.close(&mut self.requests, index);
        self.admission.left_slot(&self.requests[index]);
    }

    /// Returns the number of requests with a slot, in all DP ranks.
    fn running_count(&self) -> usize {
        self.ranks.iter().map(|rank| rank.batch.len()).sum()
    }

    /// Ends a request, whatever the reason: frees everything that it holds and emits its last
    /// output. Rows still in flight find the request gone and are ignored.
    fn end(
        &mut self,
        index: u32,
        outcome: Result<FinishReason, RequestError>,
        matched_token: Option<u32>,
        mut output: Output,
    ) {
        if self.requests[index].stage == Stage::Running {
            self.close(index);
        }
        let Some(request) = self.requests.remove(index) else {
            return;
        };
        self.admission.forget(index, &request);
        self.adapters.end(request.rest.generation.adapter);
        match request.rest.is_probe {
            true => self.probes -= 1,
            false => self.counters.count_end(&outcome),
        }
        let id = request.id;
        let ran = self.ranks.len() > 1 && request.rest.cached_tokens.is_some();
        output.dp_rank = ran.then_some(request.dp_rank);
        output.finish = Some(request.finish(outcome, matched_token));
        self.outputs.push((id, output));
    }

    /// Ends a request with an Abort output; unknown ids are harmless.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(index) = self.requests.find(id) {
            self.end(index, Ok(FinishReason::Abort), None, Output::default());
        }
    }

    /// Ends a request with a Stop output, because its client needs no more; unknown ids are
    /// harmless.
    pub fn stop(&mut self, id: RequestId) {
        if let Some(index) = self.requests.find(id) {
            self.end(index, Ok(FinishReason::Stop), None, Output::default());
        }
    }

    /// Ends requests whose time limit has passed.
    pub fn tick(&mut self, now: Millis) {
        self.admission.advance(now);
        while let Some((index, error)) = self.admission.timed_out() {
            self.end(index, Err(error), None, Output::default());
        }
    }

    /// Ends every request with this error, because the engine died for good. Nothing is in
    /// flight or cached any more, and the next plan is step 1 again.
    pub fn fail_all(&mut self, error: RequestError) {
        self.forget_engine();
        for index in self.requests.by_arrival() {
            self.end(index, Err(error.clone()), None, Output::default());
        }
        drop(error);
    }

    /// Continues with a new engine. Results in flight are lost and nothing is cached. Running
    /// requests queue again with the tokens that they have emitted, and the next plan is step 1
    /// again. Clients notice only a pause.
    pub fn restart_engine(&mut self) {
        self.forget_engine();
        for index in self.requests.by_arrival() {
            let request = &mut self.requests[index];
            if request.stage == Stage::Draining {
                self.admission.requeue(index, request);
            }
        }
    }

    /// Takes slot and pages from all running requests, because these exist no more.
    fn forget_engine(&mut self) {
        for rank in &mut self.ranks {
            rank.reset(&mut self.requests);
        }
        for request in self.requests.iter_mut() {
            request.rows_in_flight = 0;
            request.samples_in_flight = 0;
        }
        self.steps.reset();
        self.admission.reset_slots();
    }

    /// Holds new requests back, or lets them in again. While they are held, they queue, and
    /// requests that have begun go on to their ends. When [`flush_cache`](Self::flush_cache)
    /// then succeeds, nothing is left that was computed with the old weights.
    pub fn hold_admission(&mut self, held: bool) {
        self.admission.hold(held);
    }

    /// Drops the whole prefix cache. Returns the number of tokens dropped.
    ///
    /// # Errors
    /// [`Busy`] while requests run or steps are in flight. While admission is held, also if a
    /// request that has begun waits to go on.
    pub fn flush_cache(&mut self) -> Result<u64, Busy> {
        let mut running = self.running_count();
        if self.admission.is_held() {
            let begun = |index: &u32| self.requests[*index].retracted;
            running += self.admission.waiting().filter(begun).count();
        }
        if running > 0 || self.in_flight() > 0 {
            // The engine's own requests are not reported: they end with the steps in flight.
            let held = self.admission.is_held();
            let counts = |own: &&RequestState| match own.stage {
                Stage::Running => true,
                Stage::Waiting => held && own.retracted,
                Stage::Draining => false,
            };
            running -= self.own().filter(counts).count();
            return Err(Busy {
                running: u32::try_from(running).unwrap_or(u32::MAX),
                in_flight: u32::try_from(self.in_flight()).unwrap_or(u32::MAX),
            });
        }
        Ok(self.ranks.iter_mut().map(|rank| rank.kv.flush()).sum())
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// Gives a sent plan's buffers back for reuse; optional.
    pub fn recycle(&mut self, plan: StepPlan) {
        let batches = self.ranks.iter_mut().map(|rank| &mut rank.batch);
        self.steps.recycle_plan(plan, batches);
    }

    /// Drains the outputs since the last call, in order.
    pub fn take_outputs(&mut self) -> Drain<'_, (RequestId, Output)> {
        self.outputs.drain(..)
    }

    /// Returns true if no request is known and no step is in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.len() == 0 && self.in_flight() == 0
    }

    /// Returns the number of steps planned and not completed.
    pub fn in_flight(&self) -> usize {
        self.steps.len()
    }
}

#[cfg(test)]
mod tests;
