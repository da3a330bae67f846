//! A simulated engine: the planner's oracle, for tests and benches.
//!
//! [`SimWorker`] keeps KV storage as real workers do, but each cell holds the token written
//! there. A drafter's cell holds the tokens that it depends on, and a recurrent state the text
//! that it has taken in. So a page or a state that is given to the
//! wrong request, freed too early, or shared too early or too far shows up at once. The
//! simulated model is a hash of the whole context: a wrong context gives wrong tokens.
//! [`run_alone`] gives the output that a request must get, whatever else runs. [`NaivePlanner`]
//! is a planner too simple to be wrong.

use std::collections::VecDeque;

use lockstep_types::{
    request::Output,
    step::{StepPlan, StepResult},
};

use crate::{Millis, Planner, PlannerError, RequestId};

mod cells;
mod group;
mod model;
mod naive_planner;
mod reference;
mod slot;
mod states;
mod worker;

pub use group::SimGroup;
pub use model::SimModel;
pub use naive_planner::NaivePlanner;
pub use reference::{Alone, run_alone};
pub use worker::{SimError, SimWorker};

/// A planner and workers, with the plans and results on their way between them.
#[derive(Debug)]
pub struct SimEngine {
    /// The planner under test.
    pub planner: Planner,
    /// The workers.
    pub workers: SimGroup,
    plans: VecDeque<StepPlan>,
    results: VecDeque<StepResult>,
    /// All outputs of the planner so far.
    pub outputs: Vec<(RequestId, Output)>,
}

/// A fault of the planner or of a worker.
#[derive(Debug, thiserror::Error)]
pub enum SimFault {
    /// A plan that no worker could execute.
    #[error(transparent)]
    Worker(#[from] SimError),
    /// A result that the planner refused.
    #[error(transparent)]
    Planner(#[from] PlannerError),
}

impl SimEngine {
    /// Makes an engine with nothing on its way.
    pub fn new(planner: Planner, workers: SimGroup) -> Self {
        Self {
            planner,
            workers,
            plans: VecDeque::new(),
            results: VecDeque::new(),
            outputs: Vec::new(),
        }
    }

    /// Lets the planner plan one step. Returns true if it planned one.
    pub fn plan(&mut self) -> bool {
        match self.planner.plan() {
            Some(plan) => {
                self.plans.push_back(plan);
                true
            }
            None => false,
        }
    }

    /// Returns the newest plan, if it has not been run.
    pub fn last_plan(&self) -> Option<&StepPlan> {
        self.plans.back()
    }

    /// Lets the workers run the oldest plan. Returns true if there was one.
    ///
    /// # Errors
    /// The plan was wrong.
    pub fn execute(&mut self) -> Result<bool, SimFault> {
        let Some(plan) = self.plans.pop_front() else {
            return Ok(false);
        };
        self.results.push_back(self.workers.execute(&plan)?);
        self.planner.recycle(plan);
        Ok(true)
    }

    /// Hands the oldest result to the planner. Returns true if there was one.
    ///
    /// # Errors
    /// The planner refused the result.
    pub fn complete(&mut self, now: Millis) -> Result<bool, SimFault> {
        let Some(result) = self.results.pop_front() else {
            return Ok(false);
        };
        self.planner.complete(now, result)?;
        self.outputs.extend(self.planner.take_outputs());
        Ok(true)
    }

    /// Does one turn of the real scheduler's loop: plans all steps that may be planned, runs
    /// one, and takes its result. Returns false if nothing was left to do.
    ///
    /// # Errors
    /// The plan was wrong, or the planner refused its result.
    pub fn turn(&mut self, now: Millis) -> Result<bool, SimFault> {
        while self.plan() {}
        self.outputs.extend(self.planner.take_outputs());
        if self.results.is_empty() {
            self.execute()?;
        }
        self.complete(now)
    }

    /// Drops the plans and results on their way and all KV, as a killed worker does.
    pub fn lose_worker(&mut self) {
        self.plans.clear();
        self.results.clear();
        self.workers.reset();
    }
}

#[cfg(test)]
mod tests;
