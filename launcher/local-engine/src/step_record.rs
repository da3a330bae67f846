//! Record of a step, for measurements.

use lockstep_types::step::{StageTimes, StepPlan, StepResult};

/// A step's plan in numbers, and the times of its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the step, from 1.
    pub step: u64,
    /// Draft steps that the plan allowed.
    pub depth: u32,
    /// Rows that decoded, including rows of requests that had ended meanwhile.
    pub decodes: u32,
    /// Prompt tokens of the other rows.
    pub prompt_tokens: u32,
    /// Stages of the step's time.
    pub stages: StageTimes,
}

impl StepRecord {
    pub(crate) fn planned(plan: &StepPlan) -> Self {
        let decodes = plan.rows().filter(|row| row.prefill_len == 0);
        Self {
            step: plan.step,
            depth: plan.draft_steps,
            decodes: u32::try_from(decodes.count()).unwrap_or(u32::MAX),
            prompt_tokens: plan.rows().map(|row| row.prefill_len).sum(),
            ..Self::default()
        }
    }

    pub(crate) fn complete(self, result: &StepResult) -> Self {
        Self {
            stages: result.stages,
            ..self
        }
    }
}
