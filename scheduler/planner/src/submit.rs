//! New requests: what is refused at the door, and how the rest queues.

use lockstep_types::request::{ErrorKind, Request, RequestError, SpeculationUsage};

use crate::{
    Millis, Planner, RequestId,
    radix::ROOT,
    table::{Entry, Rest, Stage, len_u32},
};

impl Planner {
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
        self.now = self.now.max(now);
        if self.table.find(id).is_some() {
            return Err(invalid("request", format!("request {} is known", id.0)));
        }
        self.check_request(&request)?;
        let prompt_len = len_u32(&request.input_ids);
        let room = self.config.context_length - prompt_len;
        let max_new = request.max_new_tokens.min(room);
        let max_depth = self.max_depth(request.max_draft_steps);
        self.check_capacity(prompt_len, max_new, max_depth)?;
        self.check_queue(prompt_len)?;
        let entry = self.new_entry(id, request, max_new);
        let (deadline, queue_deadline) = (entry.rest.deadline, entry.rest.queue_deadline);
        let index = self.table.insert(entry);
        self.queue.push(index, &self.table[index]);
        self.deadlines.insert(deadline, index);
        self.queue_deadlines.insert(queue_deadline, index);
        self.counters.requests += 1;
        Ok(())
    }

    fn new_entry(&mut self, id: RequestId, request: Request, max_new: u32) -> Entry {
        self.arrivals += 1;
        let limits = [
            request.timeout_ms.map(u64::from),
            self.config.request_timeout_ms,
        ];
        let after = |ms: u64| self.now.0.saturating_add(ms);
        Entry {
            id,
            arrival: self.arrivals,
            priority: request.priority,
            stage: Stage::Waiting,
            slot: 0,
            prompt_len: len_u32(&request.input_ids),
            max_new,
            max_depth: self.max_depth(request.max_draft_steps),
            prefill_end: 0,
            planned: 0,
            committed: 0,
            drafted: 0,
            protected_pages: 0,
            node: ROOT,
            rows_in_flight: 0,
            samples_in_flight: 0,
            deferrals: 0,
            retracted: false,
            pages: Vec::new(),
            tokens: request.input_ids,
            rest: Box::new(Rest {
                sampling: request.sampling,
                logprobs: request.logprobs,
                max_draft_steps: request.max_draft_steps,
                prompt_logprobs: Vec::new(),
                delivered: false,
                speculation: SpeculationUsage::default(),
                cached_tokens: None,
                deadline: limits.into_iter().flatten().min().map(after),
                queue_deadline: self.config.queue_timeout_ms.map(after),
            }),
        }
    }

    /// Draft steps that a request may take at the most.
    fn max_depth(&self, asked: Option<u32>) -> u32 {
        let steps = self.config.reserve.steps;
        asked.map_or(steps, |asked| asked.min(steps))
    }

    fn check_request(&self, request: &Request) -> Result<(), RequestError> {
        let len = request.input_ids.len();
        if len == 0 {
            return Err(invalid("input_ids", "the prompt is empty".into()));
        }
        if request.priority != 0 && !self.config.priority_scheduling {
            return Err(invalid(
                "priority",
                "priorities need a server started with --enable-priority-scheduling".into(),
            ));
        }
        if let Some(start) = request.logprobs.prompt_start
            && start as usize > len
        {
            return Err(invalid(
                "logprob_start_len",
                format!("position {start} is past the prompt of {len} tokens"),
            ));
        }
        let scores = request.max_new_tokens == 0;
        if scores && request.logprobs.prompt_start.is_none() {
            return Err(invalid(
                "max_new_tokens",
                "max_new_tokens 0 only scores the prompt, which needs prompt log-probabilities"
                    .into(),
            ));
        }
        let longest = self.config.context_length as usize - usize::from(!scores);
        if len > longest {
            return Err(invalid(
                "input_ids",
                format!(
                    "the prompt has {len} tokens; with a context length of {} at most {longest} \
                     are possible (--context-length)",
                    self.config.context_length
                ),
            ));
        }
        Ok(())
    }

    /// A request that fits alone can always run: all others can be retracted.
    fn check_capacity(
        &self,
        prompt_len: u32,
        max_new: u32,
        max_depth: u32,
    ) -> Result<(), RequestError> {
        let page = u64::from(self.config.page_size);
        let text = u64::from(prompt_len) + u64::from(max_new);
        let reserve = &self.config.reserve;
        let need = reserve
            .tokens_for_text(text, max_depth, self.config.overlap)
            .max(u64::from(prompt_len));
        let capacity = self.config.capacity_tokens();
        if need.next_multiple_of(page) <= capacity {
            return Ok(());
        }
        Err(invalid(
            "max_new_tokens",
            format!(
                "the prompt ({prompt_len} tokens) and max_new_tokens ({max_new}) need {need} KV \
                 tokens with what a step may write; the server has {capacity} \
                 (ask for fewer tokens, or raise --max-total-tokens)"
            ),
        ))
    }

    /// Requests for which a slot is free hardly wait and do not count.
    fn check_queue(&mut self, prompt_len: u32) -> Result<(), RequestError> {
        let most = self.config.max_queued_requests as usize + self.slots.free();
        let waiting = self.queue.len();
        let tokens = self.queue.tokens() + u64::from(prompt_len);
        let (what, places) = if waiting >= most {
            ("requests", 1)
        } else if waiting > 0 && tokens > self.config.max_queued_tokens {
            let excess = tokens - self.config.max_queued_tokens;
            let mean = (self.queue.tokens() / waiting as u64).max(1);
            ("tokens", excess.div_ceil(mean))
        } else {
            return Ok(());
        };
        self.counters.rejected += 1;
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
}

fn invalid(param: &str, message: String) -> RequestError {
    RequestError {
        param: Some(param.into()),
        ..RequestError::new(ErrorKind::Invalid, message)
    }
}
