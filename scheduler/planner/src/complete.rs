//! Results come back.

use lockstep_types::{
    request::{ErrorKind, FinishReason, Output, RequestError},
    step::{SlotOutput, StepResult},
};

use crate::{
    Millis, Planner, PlannerError,
    flight::Row,
    table::{Entry, Stage, len_u32},
};

impl Planner {
    /// Takes the oldest step's result.
    ///
    /// # Errors
    /// It is not the oldest step's, or does not fit it. Nothing was taken then,
    /// and the engine that gave it is not to be trusted any more.
    pub fn complete(&mut self, now: Millis, result: StepResult) -> Result<(), PlannerError> {
        let expected = self.flight.steps.front().map(|step| step.step);
        if expected != Some(result.step) {
            return Err(PlannerError::StepOrder {
                expected,
                got: result.step,
            });
        }
        self.check_result(&result)?;
        self.now = self.now.max(now);
        let Some(step) = self.flight.steps.pop_front() else {
            return Ok(());
        };
        let mut outputs = result.outputs.into_iter().peekable();
        for row in &step.rows {
            let output = outputs.next_if(|output| output.slot == row.slot);
            self.complete_row(row, output.unwrap_or_default());
        }
        self.flight.recycle_rows(step.rows);
        self.counters.steps += 1;
        Ok(())
    }

    /// Outputs stand in the rows' order. A row that samples brings one, with at
    /// least a token, or with none where its logits were not numbers; more than
    /// one token only after as many drafted ones, and those only where it may
    /// draft.
    fn check_result(&self, result: &StepResult) -> Result<(), PlannerError> {
        let bad = |message| {
            Err(PlannerError::BadResult {
                step: result.step,
                message,
            })
        };
        let Some(step) = self.flight.steps.front() else {
            return bad("no step is in flight".into());
        };
        let mut outputs = result.outputs.iter().peekable();
        for row in &step.rows {
            let output = outputs.next_if(|output| output.slot == row.slot);
            if row.sample && output.is_none() {
                return bad(format!("slot {} brought nothing", row.slot));
            }
            let Some(output) = output else {
                continue;
            };
            let (slot, depth) = (row.slot, output.draft_depth);
            if depth > row.depth || (depth == 0) != (output.draft_tokens == 0) {
                return bad(format!(
                    "slot {slot} drafted {} tokens in {depth} steps, at most {} steps",
                    output.draft_tokens, row.depth
                ));
            }
            let count = len_u32(&output.token_ids);
            let most = row.most.min(1 + depth);
            if count > most {
                return bad(format!(
                    "slot {slot} brought {count} tokens, at most {most}"
                ));
            }
        }
        match outputs.next() {
            Some(output) => bad(format!("slot {} was not in the plan", output.slot)),
            None => Ok(()),
        }
    }

    fn complete_row(&mut self, row: &Row, output: SlotOutput) {
        if !self.table.lives(row.index, row.arrival) {
            // It ended while this row was in flight: the row was wasted.
            if output.draft_depth > 0 {
                self.speculation.count_wasted(&output);
            }
            return;
        }
        let brought = len_u32(&output.token_ids);
        if row.sample && brought == 0 {
            if output.draft_depth > 0 {
                self.speculation.count_wasted(&output);
            }
            self.end_poisoned(row.index);
            return;
        }
        let entry = &mut self.table[row.index];
        entry.rows_in_flight -= 1;
        entry.samples_in_flight -= u32::from(row.sample);
        if entry.stage == Stage::Running {
            match row.prefill_to {
                Some(to) => {
                    // A draft model may leave a single token to its next pass.
                    let single = to == entry.committed + 1;
                    entry.drafted = to - u32::from(single);
                    entry.committed = to;
                }
                None => {
                    entry.committed += brought;
                    entry.planned -= row.most - brought;
                    // It need not have seen the last drafted token either.
                    entry.drafted = entry.committed - 1;
                }
            }
        }
        if output.draft_depth > 0 {
            let (depth, drafted, accepted) = (output.draft_depth, output.draft_tokens, brought - 1);
            self.speculation.count(&output, accepted);
            entry.rest.speculation.count(depth, drafted, accepted);
        }
        let mut output = output;
        if !entry.rest.delivered {
            let scores = &mut entry.rest.prompt_logprobs;
            scores.append(&mut output.prompt_logprobs);
        }
        let ended = if row.sample || row.last_chunk {
            self.deliver(row.index, output)
        } else {
            false
        };
        if ended {
            return;
        }
        let entry = &mut self.table[row.index];
        match entry.stage {
            Stage::Running if row.prefill_to.is_some() => self.kv.share(entry),
            Stage::Draining if entry.rows_in_flight == 0 => self.requeue(row.index),
            _ => {}
        }
    }

    /// Ends a request whose logits were not numbers, and keeps what it computed
    /// out of the cache: it alone fails.
    fn end_poisoned(&mut self, index: u32) {
        let error = RequestError::new(
            ErrorKind::Internal,
            "the model computed values that are not numbers for this request; \
             if it happens with other prompts too, the weights are damaged",
        );
        self.kv.disown(&mut self.table[index]);
        self.end(index, Err(error), None, Output::default());
    }

    /// Hands new tokens out; whether the request ended with them.
    fn deliver(&mut self, index: u32, from: SlotOutput) -> bool {
        let entry = &mut self.table[index];
        let mut output = Output {
            token_ids: from.token_ids,
            logprobs: from.logprobs,
            prompt_logprobs: std::mem::take(&mut entry.rest.prompt_logprobs),
            finish: None,
        };
        entry.rest.delivered = true;
        let finish = take_tokens(entry, &mut output);
        self.counters.generated_tokens += output.token_ids.len() as u64;
        match finish {
            Some((reason, matched)) => {
                self.end(index, Ok(reason), matched, output);
                true
            }
            None => {
                let id = self.table[index].id;
                self.outputs.push((id, output));
                false
            }
        }
    }
}

/// Appends new tokens up to the one that ends the request; drops what comes
/// after it, so that neither client nor cache keys ever see that.
fn take_tokens(entry: &mut Entry, output: &mut Output) -> Option<(FinishReason, Option<u32>)> {
    if entry.max_new == 0 {
        return Some((FinishReason::Length, None));
    }
    let mut finish = None;
    let mut taken = 0;
    for token in output.token_ids.iter().copied() {
        let position = entry.emitted();
        let sampling = &entry.rest.sampling;
        // The worker masks stop tokens before `min_new_tokens`.
        let may_stop = position >= sampling.min_new_tokens;
        entry.tokens.push(token);
        taken += 1;
        if may_stop && sampling.stop_token_ids.contains(&token) {
            finish = Some((FinishReason::Stop, Some(token)));
        } else if entry.emitted() >= entry.max_new {
            finish = Some((FinishReason::Length, None));
        }
        if finish.is_some() {
            break;
        }
    }
    output.token_ids.truncate(taken);
    output.logprobs.truncate(taken);
    entry.committed = entry.committed.min(entry.len());
    finish
}
