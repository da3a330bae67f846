//! Admission: the queue, its time limits, and the next request to get a slot of a DP rank.

use std::sync::Arc;

use lockstep_types::request::{ErrorKind, Request, RequestError, SpeculationUsage};

use crate::{
    IntegrityError, Millis, PlannerConfig, RequestId,
    dp_rank::DpRank,
    error::total,
    kv::{Namespace, RequestKv},
    request::{RequestState, RequestTable, Rest, Stage, len_u32},
};
use limits::{check_capacity, check_request};
use pace::AdmissionPace;
use queue::{Deadlines, WaitQueue};

mod admit;
mod bind;
mod limits;
mod pace;
mod preemption;
mod queue;

pub(crate) use preemption::Preemption;

/// The queue and its time limits.
#[derive(Debug)]
pub(crate) struct Admission {
    config: Arc<PlannerConfig>,
    now: Millis,
    arrivals: u64,
    queue: WaitQueue,
    /// Time limits of all requests, from arrival to end.
    deadlines: Deadlines,
    /// Time limits of requests that never ran, from arrival to first admission.
    queue_deadlines: Deadlines,
    pace: AdmissionPace,
    /// True while no new request is admitted.
    held: bool,
    /// Buffers that are reused from step to step.
    candidates: Vec<u32>,
    wanted: Vec<usize>,
}

impl Admission {
    pub fn new(config: Arc<PlannerConfig>) -> Self {
        Self {
            config,
            now: Millis(0),
            arrivals: 0,
            queue: WaitQueue::default(),
            deadlines: Deadlines::default(),
            queue_deadlines: Deadlines::default(),
            pace: AdmissionPace::default(),
            held: false,
            candidates: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// Sets the time, which never goes back.
    pub fn advance(&mut self, now: Millis) {
        self.now = self.now.max(now);
    }

    pub fn now(&self) -> Millis {
        self.now
    }

    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    pub fn is_held(&self) -> bool {
        self.held
    }

    pub fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        self.queue.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn waiting_tokens(&self) -> u64 {
        self.queue.tokens()
    }

    /// Checks that a request can run here and finds a place in the queue. Returns the request's
    /// state.
    pub fn accept(
        &mut self,
        id: RequestId,
        parent: Option<RequestId>,
        request: Request,
        ranks: &[DpRank],
    ) -> Result<RequestState, RequestError> {
        check_request(&self.config, &request)?;
        let prompt_len = len_u32(&request.input_ids);
        let room = self.config.context_length - prompt_len;
        let max_new = request.max_new_tokens.min(room);
        let steps = self.config.reserve.steps;
        let asked = request.generation.max_draft_steps;
        let max_depth = asked.map_or(steps, |asked| asked.min(steps));
        check_capacity(&self.config, prompt_len, max_new, max_depth)?;
        // With one DP rank there is no choice.
        let data_parallel_rank = request.data_parallel_rank.filter(|_| ranks.len() > 1);
        self.check_queue(prompt_len, data_parallel_rank, ranks)?;
        self.arrivals += 1;
        let limits = [
            request.timeout_ms.map(u64::from),
            self.config.request_timeout_ms,
        ];
        let after = |ms: u64| self.now.0.saturating_add(ms);
        Ok(RequestState {
            id,
            parent,
            arrival: self.arrivals,
            priority: request.priority,
            stage: Stage::Waiting,
            dp_rank: 0,
            slot: 0,
            prompt_len,
            max_new,
            max_depth,
            prefill_end: 0,
            rows_in_flight: 0,
            samples_in_flight: 0,
            deferrals: 0,
            retracted: false,
            kv: RequestKv::none(Namespace::new(
                request.cache_salt,
                request.generation.adapter,
            )),
            tokens: request.input_ids,
            rest: Box::new(Rest {
                generation: request.generation,
                data_parallel_rank,
                prompt_logprobs: Vec::new(),
                delivered: false,
                arrived: self.now,
                since: self.now,
                speculation: SpeculationUsage::default(),
                cached_tokens: None,
                deadline: limits.into_iter().flatten().min().map(after),
                queue_deadline: self.config.queue_timeout_ms.map(after),
                is_probe: false,
            }),
        })
    }

    /// Returns an error if a new request makes the queue too long, or gives it too many tokens.
    /// Its length counts only requests for which no slot is free: others hardly wait. `names`
    /// is the DP rank that the new request names, if any.
    fn check_queue(
        &self,
        prompt_len: u32,
        names: Option<u32>,
        ranks: &[DpRank],
    ) -> Result<(), RequestError> {
        let free = || ranks.iter().map(|rank| rank.batch.free_slots());
        let before = self.queue.beyond_slots(free(), None);
        let with = self.queue.beyond_slots(free(), Some(names));
        let most = self.config.max_queued_requests as usize;
        let waiting = self.queue.len();
        let tokens = self.queue.tokens() + u64::from(prompt_len);
        let (what, places) = if with > before && with > most {
            ("requests", 1)
        } else if waiting > 0 && tokens > self.config.max_queued_tokens {
            let excess = tokens - self.config.max_queued_tokens;
            let mean = (self.queue.tokens() / waiting as u64).max(1);
            ("tokens", excess.div_ceil(mean))
        } else {
            return Ok(());
        };
        Err(RequestError {
            kind: ErrorKind::Overloaded,
            message: format!(
                "the queue is full: {waiting} requests with {} tokens wait \
                 (too many {what}; --max-queued-{what})",
                self.queue.tokens()
            ),
            param: None,
            retry_after_s: Some(self.pace.seconds_for(places, self.now.0)),
        })
    }

    /// Queues a new request. Its time limits begin.
    pub fn enqueue(&mut self, index: u32, request: &RequestState) {
        self.queue.push(index, request);
        self.deadlines.insert(request.rest.deadline, index);
        self.queue_deadlines
            .insert(request.rest.queue_deadline, index);
    }

    /// Queues a request that has lost its slot. The request comes before those of its priority
    /// that never ran.
    pub fn requeue(&mut self, index: u32, request: &mut RequestState) {
        request.stage = Stage::Waiting;
        request.retracted = true;
        if !request.rest.delivered {
            // The next prefill computes them again from their start.
            request.rest.prompt_logprobs.clear();
        }
        self.queue.push(index, request);
    }

    /// Notes that a request lost its slot, or ended in it.
    pub fn left_slot(&mut self, request: &RequestState) {
        self.queue.left_slot(request);
    }

    /// Notes that no request has a slot any more.
    pub fn reset_slots(&mut self) {
        self.queue.reset_slots();
    }

    /// Removes a request that has ended, waiting or not.
    pub fn forget(&mut self, index: u32, request: &RequestState) {
        if request.stage == Stage::Waiting {
            self.queue.remove(request);
        }
        self.deadlines.remove(request.rest.deadline, index);
        self.queue_deadlines
            .remove(request.rest.queue_deadline, index);
    }

    /// Returns a request whose time limit has passed, and the error for its client.
    pub fn timed_out(&self) -> Option<(u32, RequestError)> {
        if let Some(index) = self.deadlines.due(self.now.0) {
            let error = RequestError::new(
                ErrorKind::Timeout,
                "the request's time limit has passed (timeout_ms, --request-timeout)",
            );
            return Some((index, error));
        }
        let index = self.queue_deadlines.due(self.now.0)?;
        let places = self.queue.len() as u64;
        let error = RequestError {
            retry_after_s: Some(self.pace.seconds_for(places, self.now.0)),
            ..RequestError::new(
                ErrorKind::Overloaded,
                "the request waited longer than the queue's time limit (--queue-timeout)",
            )
        };
        Some((index, error))
    }

    /// Checks queue and time limits against the requests.
    pub fn check(&self, requests: &RequestTable) -> Result<(), IntegrityError> {
        let all = || requests.iter().map(|(_, request)| request);
        let waiting = || all().filter(|request| request.stage == Stage::Waiting);
        let tokens = waiting().map(|request| u64::from(request.len())).sum();
        total("queued tokens", self.queue.tokens(), tokens)?;
        let waiting = waiting().count() as u64;
        total("queued requests", self.queue.len() as u64, waiting)?;
        self.queue.check(requests)?;
        let limited = all().filter(|request| request.rest.deadline.is_some());
        let limited = limited.count() as u64;
        total("deadlines", self.deadlines.len() as u64, limited)?;
        let limited = all().filter(|request| request.rest.queue_deadline.is_some());
        let limited = limited.count() as u64;
        total(
            "queue deadlines",
            self.queue_deadlines.len() as u64,
            limited,
        )
    }
}
