//! The planner's face.

use std::vec::Drain;

use lockstep_proto::{
    request::{Output, Request, RequestError},
    step::{StepPlan, StepResult},
};

use crate::{Busy, IntegrityError, Load, Millis, PlannerConfig, PlannerError, RequestId};

/// Every request's state, and the next plan from it.
#[derive(Debug)]
pub struct Planner {
    config: PlannerConfig,
    outputs: Vec<(RequestId, Output)>,
}

impl Planner {
    /// An idle planner.
    ///
    /// # Errors
    /// [`PlannerError::Config`] names the field at fault.
    pub fn new(config: PlannerConfig) -> Result<Self, PlannerError> {
        config.validate()?;
        Ok(Self {
            config,
            outputs: Vec::new(),
        })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// Invalid when it can never run; Overloaded when a queue is full.
    pub fn submit(
        &mut self,
        _now: Millis,
        _id: RequestId,
        _request: Request,
    ) -> Result<(), RequestError> {
        Ok(())
    }

    /// Ends a request with an Abort output; unknown ids are harmless.
    pub fn abort(&mut self, _id: RequestId) {}

    /// Ends requests whose time is over.
    pub fn tick(&mut self, _now: Millis) {}

    /// The next step, or nothing to do (yet).
    pub fn plan(&mut self) -> Option<StepPlan> {
        None
    }

    /// Gives a sent plan's buffers back for reuse.
    pub fn recycle(&mut self, _plan: StepPlan) {}

    /// Takes the oldest step's result.
    ///
    /// # Errors
    /// The result does not belong to the oldest plan in flight.
    pub fn complete(&mut self, _now: Millis, result: StepResult) -> Result<(), PlannerError> {
        Err(PlannerError::StepOrder {
            expected: None,
            got: result.step,
        })
    }

    /// What happened since the last call, in order.
    pub fn take_outputs(&mut self) -> Drain<'_, (RequestId, Output)> {
        self.outputs.drain(..)
    }

    /// The engine died: every request ends with this error.
    pub fn fail_all(&mut self, _error: RequestError) {}

    /// Drops the whole prefix cache; the number of tokens dropped.
    ///
    /// # Errors
    /// [`Busy`] while requests run.
    pub fn flush_cache(&mut self) -> Result<u64, Busy> {
        Ok(0)
    }

    /// Gauges and counters.
    pub fn load(&self) -> Load {
        Load {
            kv_tokens_total: self.config.capacity_tokens(),
            ..Load::default()
        }
    }

    /// Checks all books.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        Ok(())
    }

    /// No request is known and no step is in flight.
    pub fn is_idle(&self) -> bool {
        true
    }

    /// Steps planned and not completed.
    pub fn in_flight(&self) -> usize {
        0
    }
}
