//! A simulated engine: the planner's oracle, for tests and benches.
//!
//! [`SimWorker`] keeps KV storage as real workers do, but each cell holds the
//! token written there, and the drafter's the tokens that it depends on, so
//! that any page given to the wrong request, freed too early or shared too
//! early or too far shows up at once. Its "model" is a hash of the
//! whole context: a wrong context gives wrong tokens. [`run_alone`] is what a
//! request must get whoever else runs, and [`NaivePlanner`] a planner too
//! simple to be wrong.

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
mod worker;

pub use group::SimGroup;
pub use model::SimModel;
pub use naive_planner::NaivePlanner;
pub use reference::{Alone, run_alone};
pub use worker::{SimError, SimWorker};

/// A planner and workers with plans and results on their way between them.
#[derive(Debug)]
pub struct SimEngine {
    /// The planner under test.
    pub planner: Planner,
    /// The workers.
    pub workers: SimGroup,
    plans: VecDeque<StepPlan>,
    results: VecDeque<StepResult>,
    /// Everything the planner has put out.
    pub outputs: Vec<(RequestId, Output)>,
}

/// A fault of planner or worker.
#[derive(Debug, thiserror::Error)]
pub enum SimFault {
    /// The planner's plan was wrong.
    #[error(transparent)]
    Worker(#[from] SimError),
    /// The planner refused a result.
    #[error(transparent)]
    Planner(#[from] PlannerError),
}

impl SimEngine {
    /// Nothing on its way.
    pub fn new(planner: Planner, workers: SimGroup) -> Self {
        Self {
            planner,
            workers,
            plans: VecDeque::new(),
            results: VecDeque::new(),
            outputs: Vec::new(),
        }
    }

    /// Lets the planner plan one step; whether it did.
    pub fn plan(&mut self) -> bool {
        match self.planner.plan() {
            Some(plan) => {
                self.plans.push_back(plan);
                true
            }
            None => false,
        }
    }

    /// The plan that was made last, if it has not been run.
    pub fn last_plan(&self) -> Option<&StepPlan> {
        self.plans.back()
    }

    /// Lets the workers run the oldest plan; whether there was one.
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

    /// Hands the oldest result to the planner; whether there was one.
    ///
    /// # Errors
    /// The planner refused it.
    pub fn complete(&mut self, now: Millis) -> Result<bool, SimFault> {
        let Some(result) = self.results.pop_front() else {
            return Ok(false);
        };
        self.planner.complete(now, result)?;
        self.outputs.extend(self.planner.take_outputs());
        Ok(true)
    }

    /// One turn of the real scheduler's loop: plan all that may be planned, run
    /// one step, take its result. False when nothing was left to do.
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

    /// Throws away what is on its way and all KV, as a killed worker does.
    pub fn lose_worker(&mut self) {
        self.plans.clear();
        self.results.clear();
        self.workers.reset();
    }
}

#[cfg(test)]
mod tests;
