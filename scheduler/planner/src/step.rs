//! Putting one step together.

use lockstep_types::{
    request::{ErrorKind, Output, RequestError},
    step::StepPlan,
};

use crate::{Planner, flight::Draft};

impl Planner {
    /// The next step: decode rows first, then prompts within the token budget,
    /// those under way before new ones. `None` when there is nothing to do or
    /// enough is in flight.
    pub fn plan(&mut self) -> Option<StepPlan> {
        let idle = self.running.is_empty() && self.queue.is_empty();
        if idle || self.flight.steps.len() >= self.config.max_in_flight() {
            return None;
        }
        let mut draft = self.flight.draft();
        self.preempt();
        self.plan_decodes(&mut draft);
        draft.budget = self.budget_beside(draft.rows.len());
        self.plan_prefills(&mut draft);
        self.admit(&mut draft);
        if draft.rows.is_empty() && self.flight.steps.is_empty() {
            self.unblock(&mut draft);
        }
        if draft.rows.is_empty() {
            self.flight.recycle(draft.plan);
            self.flight.recycle_rows(draft.rows);
            return None;
        }
        draft.plan.draft_steps = self.draft_steps;
        self.slots.drain_closes(&mut draft.plan.closes);
        self.ratio.decay();
        Some(self.flight.launch(draft))
    }

    /// Decode rows use up budget, but never all of it: new requests would wait
    /// for old ones to end.
    fn budget_beside(&self, decodes: usize) -> u32 {
        let budget = self.config.prefill_budget();
        let decodes = u32::try_from(decodes).unwrap_or(u32::MAX);
        budget.saturating_sub(decodes).max(budget.div_ceil(4))
    }

    /// Nothing is in flight and nothing could be planned although requests run:
    /// prompts hold all pages half way. The last ones give theirs back until
    /// the first can go on.
    fn unblock(&mut self, draft: &mut Draft) {
        while draft.rows.is_empty() {
            let Some(last) = self.running.last().copied() else {
                return;
            };
            if self.running.len() == 1 {
                // Submission refuses what does not fit alone: the books are wrong.
                let error = RequestError::new(
                    ErrorKind::Internal,
                    "the KV pool has no page for the only running request",
                );
                self.end(last, Err(error), None, Output::default());
                return;
            }
            self.retract(last);
            self.plan_prefills(draft);
        }
    }
}

#[cfg(test)]
mod tests;
