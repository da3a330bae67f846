//! Results of steps.

use lockstep_types::{
    request::{ErrorKind, Output, RequestError},
    step::{SlotOutput, StepResult},
};

use crate::{
    Millis, Planner, PlannerError,
    batch::RowInFlight,
    request::{Stage, len_u32},
};

impl Planner {
    /// Takes the oldest step's result.
    ///
    /// # Errors
    /// The result is not the oldest step's, or does not fit that step. Nothing is taken then,
    /// and the engine that gave it can't be trusted any more.
    pub fn complete(&mut self, now: Millis, result: StepResult) -> Result<(), PlannerError> {
        let step = self.steps.take(&result)?;
        self.admission.advance(now);
        for part in step.results(result.outputs) {
            for (row, output) in part {
                self.complete_row(row, output.unwrap_or_default());
            }
        }
        self.steps.recycle(step);
        self.counters.steps += 1;
        Ok(())
    }

    fn complete_row(&mut self, row: &RowInFlight, mut output: SlotOutput) {
        let tokens = len_u32(&output.token_ids);
        // The request may have ended while this row was in flight.
        let lives = self.requests.lives(row.index, row.arrival);
        let poisoned = row.sample && tokens == 0;
        if !lives || poisoned {
            self.speculation.count_wasted(&output);
            if lives {
                self.end_poisoned(row.index);
            }
            return;
        }
        let request = &mut self.requests[row.index];
        let kv = &mut self.ranks[request.dp_rank as usize].kv;
        row.commit(kv, request, tokens, output.draft_tokens > 0);
        if output.draft_depth > 0 {
            let (depth, drafted, accepted) = (output.draft_depth, output.draft_tokens, tokens - 1);
            self.speculation.count(&output, accepted);
            request.rest.speculation.count(depth, drafted, accepted);
        }
        if !request.rest.delivered {
            let scores = &mut request.rest.prompt_logprobs;
            scores.append(&mut output.prompt_logprobs);
        }
        if (row.sample || row.last_chunk) && self.deliver(row.index, output) {
            return;
        }
        let request = &mut self.requests[row.index];
        match request.stage {
            Stage::Running => {
                let kv = &mut self.ranks[request.dp_rank as usize].kv;
                kv.share(request, row.prefill_to.is_some());
            }
            Stage::Draining if request.rows_in_flight == 0 => {
                self.admission.requeue(row.index, request);
            }
            _ => {}
        }
    }

    /// Emits new tokens. Returns true if the request ended with them.
    fn deliver(&mut self, index: u32, from: SlotOutput) -> bool {
        let now = self.admission.now();
        let request = &mut self.requests[index];
        let counts = !request.rest.is_probe;
        if counts && !request.rest.delivered {
            self.counters.prefill.record(request.rest.since, now);
        }
        // Made here and filled in place: a step hands out one for every row.
        let mut output = Output {
            token_ids: from.token_ids,
            logprobs: from.logprobs,
            prompt_logprobs: std::mem::take(&mut request.rest.prompt_logprobs),
            finish: None,
            dp_rank: (self.ranks.len() > 1).then_some(request.dp_rank),
        };
        let finish = request.append(&mut output);
        if counts {
            let tokens = output.token_ids.len() as u64;
            self.counters.generated_tokens += tokens;
            self.ranks[request.dp_rank as usize]
                .counters
                .generated_tokens += tokens;
        }
        let Some((reason, matched_token)) = finish else {
            self.outputs.push((request.id, output));
            return false;
        };
        self.end(index, Ok(reason), matched_token, output);
        true
    }

    /// Ends a request whose logits were not numbers, or whose constraint could not be followed,
    /// and keeps its KV out of the cache. Other requests go on.
    fn end_poisoned(&mut self, index: u32) {
        let request = &mut self.requests[index];
        let message = match request.rest.generation.constraint {
            Some(_) => {
                "no token was left for this request: its constraint could not be followed any \
                 further, or the model computed values that are not numbers; simplify the \
                 constraint, and see the log of the workers"
            }
            None => {
                "the model computed values that are not numbers for this request; \
                 if it happens with other prompts too, the weights are damaged"
            }
        };
        let error = RequestError::new(ErrorKind::Internal, message);
        let kv = &self.ranks[request.dp_rank as usize].kv;
        kv.discard_unshared(&mut request.kv);
        self.end(index, Err(error), None, Output::default());
    }
}
