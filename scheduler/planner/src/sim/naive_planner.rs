//! A planner too simple to be wrong: one request at a time, whole prompts, no cache, one step
//! in flight. Client requests stand in a ring and take turns.

use std::collections::VecDeque;

use lockstep_types::{
    request::{Finish, FinishReason, Output, Request, Usage},
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan, StepResult},
};

use crate::{PlannerConfig, RequestId};

/// A client request and its waiting choices.
type Family = (Option<RequestId>, VecDeque<(RequestId, Request)>);

/// Runs requests to their ends, all on slot 0. A client request runs one choice, and then joins
/// the end of the ring. A choice runs in the DP rank that it names, or in the next one.
#[derive(Debug)]
pub struct NaivePlanner {
    config: PlannerConfig,
    ring: VecDeque<Family>,
    running: Option<(RequestId, Request)>,
    output: Vec<u32>,
    in_flight: bool,
    /// DP rank of the last request.
    dp_rank: usize,
    /// True for each DP rank whose slot was opened.
    open: Vec<bool>,
    step: u64,
}

impl NaivePlanner {
    /// Makes an idle planner.
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            config: config.clone(),
            ring: VecDeque::new(),
            running: None,
            output: Vec::new(),
            in_flight: false,
            dp_rank: 0,
            open: vec![false; config.dp_size as usize],
            step: 0,
        }
    }

    /// Queues a request that fits the pool.
    pub fn submit(&mut self, id: RequestId, request: Request) {
        self.submit_choice(id, None, request);
    }

    /// Queues a choice of the client request `parent`.
    pub fn submit_choice(&mut self, id: RequestId, parent: Option<RequestId>, request: Request) {
        let same = |family: &&mut Family| parent.is_some() && family.0 == parent;
        match self.ring.iter_mut().find(same) {
            Some((_, choices)) => choices.push_back((id, request)),
            None => self.ring.push_back((parent, [(id, request)].into())),
        }
    }

    /// Returns the choice whose turn is next.
    fn next(&mut self) -> Option<(RequestId, Request)> {
        let (parent, mut choices) = self.ring.pop_front()?;
        let next = choices.pop_front();
        if !choices.is_empty() {
            self.ring.push_back((parent, choices));
        }
        next
    }

    /// Returns the next step of the request whose turn it is.
    pub fn plan(&mut self) -> Option<StepPlan> {
        if self.in_flight {
            return None;
        }
        if self.running.is_none() {
            self.running = self.next();
            let (_, request) = self.running.as_ref()?;
            let named = request.data_parallel_rank.map(|named| named as usize);
            self.dp_rank = named.unwrap_or((self.dp_rank + 1) % self.open.len());
        }
        let (_, request) = self.running.as_ref()?;
        self.in_flight = true;
        self.step += 1;
        let mut part = PlanPart::default();
        let mut row = SlotExtend {
            sample: request.max_new_tokens > 0,
            ..SlotExtend::default()
        };
        if self.output.is_empty() {
            let was_open = std::mem::replace(&mut self.open[self.dp_rank], true);
            part.closes.extend(was_open.then_some(0));
            row.prefill_len = request.input_ids.len() as u32;
            // The request gets as many pages as it can ever want: no other request wants any.
            let reserve = &self.config.reserve;
            let extra = reserve.req_to_token_extra_context_len(self.config.overlap);
            let pages = (self.config.context_length + extra).div_ceil(self.config.page_size);
            let blocks = (1..self.config.num_pages).take(pages as usize);
            let groups = self.config.groups();
            row.new_pages = SlotExtend::pages_of_all(blocks, groups);
            part.opens.push(SlotOpen {
                generation: request.generation.clone(),
                state: (self.config.states > 0).then_some(0),
                ..SlotOpen::new(0, request.input_ids.clone())
            });
        }
        part.extends.push(row);
        let mut parts = vec![PlanPart::default(); self.open.len()];
        parts[self.dp_rank] = part;
        Some(StepPlan {
            step: self.step,
            draft_steps: self.config.reserve.steps,
            parts,
            ..StepPlan::default()
        })
    }

    /// Takes the step's result. Returns the output of the step's request.
    pub fn complete(&mut self, result: StepResult) -> Option<(RequestId, Output)> {
        self.in_flight = false;
        let (id, request) = self.running.as_ref()?;
        let id = *id;
        let mut from = result
            .outputs
            .into_iter()
            .flatten()
            .next()
            .unwrap_or_default();
        let (mut reason, mut matched_token) = self.ends(request, None);
        let mut taken = 0;
        while let (None, Some(token)) = (&reason, from.token_ids.get(taken).copied()) {
            self.output.push(token);
            taken += 1;
            (reason, matched_token) = self.ends(request, Some(token));
        }
        from.token_ids.truncate(taken);
        from.logprobs.truncate(taken);
        let mut output = Output {
            token_ids: from.token_ids,
            logprobs: from.logprobs,
            prompt_logprobs: from.prompt_logprobs,
            finish: None,
            dp_rank: (self.open.len() > 1).then_some(self.dp_rank as u32),
        };
        if let Some(reason) = reason {
            output.finish = Some(Finish {
                outcome: Ok(reason),
                matched_token,
                usage: Usage {
                    prompt_tokens: request.input_ids.len() as u32,
                    completion_tokens: self.output.len() as u32,
                    cached_tokens: 0,
                },
                speculation: None,
            });
            self.output.clear();
            self.running = None;
        }
        Some((id, output))
    }

    fn ends(&self, request: &Request, last: Option<u32>) -> (Option<FinishReason>, Option<u32>) {
        let sampling = &request.generation.sampling;
        let room = self.config.context_length as usize - request.input_ids.len();
        let most = room.min(request.max_new_tokens as usize);
        let may_stop = self.output.len() > sampling.min_new_tokens as usize;
        let stop = last.filter(|token| may_stop && sampling.stop_token_ids.contains(token));
        let reason = match stop {
            Some(_) => Some(FinishReason::Stop),
            None => (self.output.len() >= most).then_some(FinishReason::Length),
        };
        (reason, stop)
    }
}
