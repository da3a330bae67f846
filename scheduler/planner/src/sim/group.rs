//! The simulated workers of all DP ranks.

use lockstep_types::step::{StepPlan, StepResult};

use super::{SimError, SimModel, SimWorker};
use crate::PlannerConfig;

/// A simulated worker for each DP rank.
#[derive(Debug)]
pub struct SimGroup(Vec<SimWorker>);

impl SimGroup {
    /// Makes workers for plans made under `config`, see [`SimWorker::new`].
    pub fn new(config: &PlannerConfig, model: SimModel, verify: bool) -> Self {
        let worker = |dp_rank| SimWorker::new(config, model, verify).of_dp_rank(dp_rank);
        Self((0..config.dp_size as usize).map(worker).collect())
    }

    /// Lets all workers agree on these depths, see [`SimWorker::agreeing_on`].
    #[must_use]
    pub fn agreeing_on(self, decisions: &[Option<u32>]) -> Self {
        let workers = self.0.into_iter();
        Self(
            workers
                .map(|worker| worker.agreeing_on(decisions.to_vec()))
                .collect(),
        )
    }

    /// Resets all workers as a restart does, see [`SimWorker::reset`].
    pub fn reset(&mut self) {
        self.0.iter_mut().for_each(SimWorker::reset);
    }

    /// Runs one plan.
    ///
    /// # Errors
    /// [`SimError`] for a plan that no worker could execute.
    pub fn execute(&mut self, plan: &StepPlan) -> Result<StepResult, SimError> {
        let results = self.0.iter_mut().map(|worker| worker.execute(plan));
        Ok(StepResult::join(results.collect::<Result<Vec<_>, _>>()?))
    }
}
