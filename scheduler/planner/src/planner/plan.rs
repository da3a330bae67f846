//! Planning of the next step.

use lockstep_types::{
    request::{ErrorKind, Output, RequestError},
    step::StepPlan,
};

use crate::{Planner, admission::Preemption, dp_rank::DpRank};

impl Planner {
    /// Plans the next step. In each DP rank decode rows come first, then prompts within the
    /// token budget, prompts under way before new ones. Returns `None` if there is nothing to
    /// do or enough is in flight.
    pub fn plan(&mut self) -> Option<StepPlan> {
        let idle = self.running_count() == 0 && self.admission.is_empty();
        if idle || self.steps.is_full() {
            return None;
        }
        self.begin_step();
        self.preempt();
        for at in 0..self.ranks.len() {
            self.make_room_for_decodes(at);
            self.ranks[at].plan_running(&mut self.requests);
        }
        self.admission
            .admit(&mut self.requests, &mut self.ranks, &mut self.counters);
        for at in 0..self.ranks.len() {
            self.unblock(at);
        }
        if self.ranks.iter().all(|rank| rank.batch.next.is_empty()) {
            return None;
        }
        self.ranks.iter_mut().for_each(DpRank::step_planned);
        let batches = self.ranks.iter_mut().map(|rank| &mut rank.batch);
        let plan = self.steps.launch(batches);
        self.counters.count_plan(&plan);
        Some(plan)
    }

    /// Begins an empty part in each DP rank.
    fn begin_step(&mut self) {
        let ranks = self.ranks.iter();
        let decodes = || ranks.map(|rank| rank.batch.decodes(&self.requests)).sum();
        let draft_steps = self.steps.begin(decodes);
        for rank in &mut self.ranks {
            rank.batch.next.begin(draft_steps);
        }
    }

    /// Displaces running requests in favour of a waiting one, until the waiting one fits.
    fn preempt(&mut self) {
        let preemption = self.admission.preemption(&self.requests, &mut self.ranks);
        let Some(preemption) = preemption else {
            return;
        };
        let Preemption {
            head,
            dp_rank,
            victims,
        } = preemption;
        for victim in victims {
            if self.ranks[dp_rank].has_room_for(head, &self.requests) {
                return;
            }
            self.retract(victim);
            self.counters.preemptions += 1;
        }
    }

    /// Retracts requests from the end of a DP rank's ranking until all its decode rows fit.
    fn make_room_for_decodes(&mut self, at: usize) {
        while self.ranks[at].lacks_pages(&self.requests)
            && self.ranks[at].batch.len() > 1
            && let Some(last) = self.first_to_yield(at)
        {
            self.ranks[at].pages_ran_out(&self.requests);
            self.retract(last);
        }
    }

    fn first_to_yield(&self, at: usize) -> Option<u32> {
        let running = self.running_count();
        let batch = &self.ranks[at].batch;
        self.admission
            .first_to_yield(running, &self.requests, batch)
    }

    /// Frees pages of a DP rank where prompts hold all pages half way: nothing of it is in
    /// flight, and nothing could be planned although requests run. The last requests give their
    /// pages back until the first can go on.
    fn unblock(&mut self, at: usize) {
        while self.ranks[at].batch.next.is_empty()
            && !self.steps.runs(at)
            && let Some(last) = self.ranks[at].batch.last()
        {
            if self.ranks[at].batch.len() == 1 {
                // Submission refuses requests that do not fit alone, so the planner's state is
                // wrong.
                let error = RequestError::new(
                    ErrorKind::Internal,
                    "the KV pool has no page for the only running request",
                );
                self.end(last, Err(error), None, Output::default());
                return;
            }
            self.ranks[at].pages_ran_out(&self.requests);
            self.retract(last);
            self.ranks[at].plan_prefills(&mut self.requests);
        }
    }
}
