//! The steps of all DP ranks together: their numbers, their depths, and the steps in flight.

use std::collections::VecDeque;

use lockstep_adaptive::DepthRange;
use lockstep_types::step::{PlanPart, StepPlan, StepResult};

use crate::{
    PlannerConfig, PlannerError,
    batch::{Batch, RowInFlight},
    request::{RequestState, Stage},
};
pub use depth::PlanDepth;
use in_flight::StepInFlight;

mod depth;
mod in_flight;

/// Steps planned and not completed, oldest first, and the buffers that they reuse.
#[derive(Debug)]
pub(crate) struct Steps {
    in_flight: VecDeque<StepInFlight>,
    most_in_flight: usize,
    /// Largest number of draft steps that can be set.
    most_draft_steps: u32,
    depth: PlanDepth,
    last_step: u64,
    plans: Vec<StepPlan>,
    rows: Vec<Vec<Vec<RowInFlight>>>,
}

/// Most spare buffers that are of use: two steps in flight, one in the making, one on its way
/// back.
const SPARE: usize = 4;

impl Steps {
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            in_flight: VecDeque::new(),
            most_in_flight: config.max_in_flight(),
            most_draft_steps: config.reserve.steps,
            depth: PlanDepth::new(config),
            last_step: 0,
            plans: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub fn set_draft_steps(&mut self, steps: u32) {
        self.depth.set_most(steps.min(self.most_draft_steps));
    }

    pub fn set_depth_range(&mut self, range: DepthRange) {
        self.depth.set_range(range);
    }

    /// Returns the number of steps planned and not completed.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns true if no further step may be in flight.
    pub fn is_full(&self) -> bool {
        self.len() >= self.most_in_flight
    }

    /// Returns true if a DP rank has rows in a step in flight.
    pub fn runs(&self, dp_rank: usize) -> bool {
        self.in_flight.iter().any(|step| step.runs(dp_rank))
    }

    /// Begins the plan of a step in which `decodes` rows decode. Returns the step's draft
    /// steps.
    pub fn begin(&mut self, decodes: impl FnOnce() -> u32) -> u32 {
        self.depth.begin(decodes);
        self.depth.steps()
    }

    /// Numbers the step whose parts the batches of all DP ranks have planned. The step is
    /// certain to be sent.
    pub fn launch<'a>(
        &mut self,
        batches: impl ExactSizeIterator<Item = &'a mut Batch>,
    ) -> StepPlan {
        let mut plan = self.plans.pop().unwrap_or_default();
        let mut rows = self.rows.pop().unwrap_or_default();
        plan.parts.resize_with(batches.len(), PlanPart::default);
        rows.resize_with(batches.len(), Vec::new);
        let mut samples = 0;
        for (batch, (part, rows)) in batches.zip(plan.parts.iter_mut().zip(&mut rows)) {
            samples += batch.next.samples();
            batch.launch(part, rows);
        }
        self.last_step += 1;
        plan.step = self.last_step;
        (plan.draft_steps, plan.depth_range) = self.depth.launch(|| samples);
        self.in_flight
            .push_back(StepInFlight::new(self.last_step, rows));
        plan
    }

    /// Takes the oldest step out, if the result belongs to it and fits it.
    pub fn take(&mut self, result: &StepResult) -> Result<StepInFlight, PlannerError> {
        let Some(step) = self
            .in_flight
            .pop_front_if(|step| step.number() == result.step)
        else {
            return Err(PlannerError::StepOrder {
                expected: self.in_flight.front().map(|step| step.number()),
                got: result.step,
            });
        };
        if let Err(message) = step.check(result) {
            self.in_flight.push_front(step);
            return Err(PlannerError::BadResult {
                step: result.step,
                message,
            });
        }
        if let Some(depth) = result.agreed_depth {
            self.depth.decide(result.step, depth);
        }
        Ok(step)
    }

    /// Keeps a completed step's buffers for later.
    pub fn recycle(&mut self, step: StepInFlight) {
        if self.rows.len() < SPARE {
            self.rows.push(step.into_buffers());
        }
    }

    /// Keeps a sent plan's buffers for later.
    pub fn recycle_plan<'a>(
        &mut self,
        mut plan: StepPlan,
        batches: impl Iterator<Item = &'a mut Batch>,
    ) {
        for (batch, part) in batches.zip(&mut plan.parts) {
            batch.recycle(part);
            part.closes.clear();
            part.opens.clear();
        }
        if self.plans.len() < SPARE {
            self.plans.push(plan);
        }
    }

    /// Checks the rows in flight of one request.
    pub fn check_request(&self, index: u32, request: &RequestState) -> Result<(), &'static str> {
        let own = |row: &&RowInFlight| row.index == index && row.arrival == request.arrival;
        let rows = self.in_flight.iter().flat_map(StepInFlight::rows);
        let (rows, samples) = rows.filter(own).fold((0, 0), |(rows, samples), row| {
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

    /// Forgets the steps in flight, because the engine is gone. The next step is number 1.
    pub fn reset(&mut self) {
        self.in_flight.clear();
        self.last_step = 0;
        self.depth.reset();
    }
}

#[cfg(test)]
mod tests;
