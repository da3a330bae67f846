//! Planner and worker ranks inside one process, without a server.
//!
//! The planner and the workers are the ones behind the gRPC seams, joined by channels here.
//! This engine is for `lockstep generate`, `lockstep bench offline` and tests that run many
//! configurations.

#![forbid(unsafe_code)]

use std::{collections::VecDeque, path::Path, time::Instant};

use lockstep_planner::{
    IntegrityError, Load, Millis, Planner, PlannerError, RequestId, SpeculationCounters,
};
use lockstep_tp_worker::worker::{WeightOrigin, WorkerError, local::LocalGroup};
use lockstep_types::EngineConfig;
use lockstep_types::adapter::Adapter;
use lockstep_types::request::{ErrorKind, Output, Request, RequestError};

mod completion;
mod step_record;

pub use completion::Completion;
pub use lockstep_tp_worker::worker::{MaskPlace, local::LocalOptions};
pub use step_record::StepRecord;

/// The reason why the engine can't go on.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// An error of the planner.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// An error of a rank.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A request was refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Requests wait, but no step can be planned.
    #[error("the planner makes no progress")]
    Stuck,
}

/// An engine in this process.
pub struct LocalEngine {
    planner: Planner,
    group: LocalGroup,
    config: EngineConfig,
    start: Instant,
    next: u64,
    /// Steps in flight, oldest first.
    planned: VecDeque<StepRecord>,
    last_step: Option<StepRecord>,
}

impl LocalEngine {
    /// Loads all ranks as threads.
    ///
    /// # Errors
    /// [`LocalError`] for sizes that make no planner, or for a rank that can't load.
    pub fn start(config: &EngineConfig, options: &LocalOptions) -> Result<Self, LocalError> {
        Ok(Self {
            planner: Planner::new(config.into())?,
            group: LocalGroup::start(config, options)?,
            config: config.clone(),
            start: Instant::now(),
            next: 0,
            planned: VecDeque::new(),
            last_step: None,
        })
    }

    /// Sets the caution of admission, see [`Planner::with_conservativeness`].
    #[must_use]
    pub fn with_conservativeness(mut self, thousandths: u32) -> Self {
        self.planner = self.planner.with_conservativeness(thousandths);
        self
    }

    /// Descriptions of the devices that the ranks run on.
    pub fn descriptions(&self) -> &[String] {
        self.group.descriptions()
    }

    /// Bytes of packed weights, over all ranks.
    pub fn weight_bytes(&self) -> usize {
        self.group.weight_bytes()
    }

    /// Origin of each rank's weights.
    pub fn weight_origins(&self) -> &[WeightOrigin] {
        self.group.weight_origins()
    }

    /// Rows of the model's vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.config.model.vocab_size
    }

    /// Loads the adapter in `folder` to `place` on all ranks. Requests submitted from now on may
    /// have what is returned. None that runs may have the adapter that was there.
    ///
    /// # Errors
    /// [`LocalError`] for an adapter that is refused; then nothing changes.
    pub fn load_adapter(&mut self, place: u16, folder: &Path) -> Result<Adapter, LocalError> {
        let content = self.group.load_adapter(place, folder)?;
        Ok(Adapter { place, content })
    }

    /// Takes the adapter at `place` away. No request that runs may have it.
    ///
    /// # Errors
    /// [`LocalError`] when a rank is gone.
    pub fn unload_adapter(&mut self, place: u16) -> Result<(), LocalError> {
        Ok(self.group.clear_adapter(place)?)
    }

    /// Queues a request; its number names its outputs.
    ///
    /// # Errors
    /// The refusal that a server's client would get.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        let request = lockstep_scheduler::admissible(request, &self.config.model)
            .map_err(|error| RequestError::new(ErrorKind::Invalid, error.to_string()))?;
        self.next += 1;
        let id = RequestId(self.next);
        self.planner.submit(self.now(), id, request)?;
        Ok(id)
    }

    /// Ends a request.
    pub fn abort(&mut self, id: RequestId) {
        self.planner.abort(id);
    }

    /// Plans as far ahead as the configuration allows, then waits for one step. Returns
    /// false when there is nothing left to do.
    ///
    /// # Errors
    /// [`LocalError`] when a rank fails or nothing can be planned.
    pub fn step(&mut self) -> Result<bool, LocalError> {
        let now = self.now();
        self.planner.tick(now);
        while let Some(plan) = self.planner.plan() {
            self.planned.push_back(StepRecord::planned(&plan));
            self.group.send(plan)?;
        }
        if self.planner.in_flight() == 0 {
            return if self.planner.is_idle() {
                Ok(false)
            } else {
                Err(LocalError::Stuck)
            };
        }
        self.settle_step()
    }

    /// Waits for the oldest step under way and plans no other. Returns false when none is
    /// under way.
    ///
    /// # Errors
    /// [`LocalError`] when a rank fails.
    pub fn settle_step(&mut self) -> Result<bool, LocalError> {
        if self.planner.in_flight() == 0 {
            return Ok(false);
        }
        let result = self.group.recv()?;
        let planned = self.planned.pop_front();
        self.last_step = planned.map(|planned| planned.complete(&result));
        self.planner.complete(self.now(), result)?;
        Ok(true)
    }

    /// The step that [`Self::step`] waited for last.
    pub fn last_step(&self) -> Option<&StepRecord> {
        self.last_step.as_ref()
    }

    /// Outputs since the last call, in order.
    pub fn take_outputs(&mut self) -> impl Iterator<Item = (RequestId, Output)> + '_ {
        self.planner.take_outputs()
    }

    /// Runs all requests at once, to their ends. Completions come in the requests' order.
    ///
    /// # Errors
    /// [`LocalError`], also when one request is refused.
    pub fn run(&mut self, requests: Vec<Request>) -> Result<Vec<Completion>, LocalError> {
        let first = self.next + 1;
        let mut completions = vec![Completion::default(); requests.len()];
        for request in requests {
            self.submit(request)?;
        }
        loop {
            let more = self.step()?;
            for (id, output) in self.planner.take_outputs() {
                let at =
                    id.0.checked_sub(first)
                        .and_then(|at| usize::try_from(at).ok());
                if let Some(completion) = at.and_then(|at| completions.get_mut(at)) {
                    completion.add(output);
                }
            }
            if !more {
                return Ok(completions);
            }
        }
    }

    /// Drops the prefix cache; the engine must be idle.
    ///
    /// # Errors
    /// [`lockstep_planner::Busy`] while requests run.
    pub fn flush_cache(&mut self) -> Result<u64, lockstep_planner::Busy> {
        self.planner.flush_cache()
    }

    /// Lets decode rows draft `steps` steps from the next plan on, as far as configuration
    /// and requests allow; 0 is none.
    pub fn set_draft_steps(&mut self, steps: u32) {
        self.planner.set_draft_steps(steps);
    }

    /// Counters of speculation since the start.
    pub fn speculation(&self) -> &SpeculationCounters {
        self.planner.speculation()
    }

    /// Gauges and counters.
    pub fn load(&self) -> Load {
        self.planner.load()
    }

    /// Checks the planner's books.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        self.planner.check_integrity()
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
