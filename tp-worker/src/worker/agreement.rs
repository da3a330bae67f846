//! Agreement of the ranks: the words by which they compare themselves before, in and after a
//! pass, and the depth that they decide together.
//!
//! A step calls the methods of [`Agreement`] in this order: [`begin`](Agreement::begin),
//! [`announce`](Agreement::announce), [`extent`](Agreement::extent),
//! [`start_pass`](Agreement::start_pass), [`take_rows`](Agreement::take_rows),
//! [`decide`](Agreement::decide), [`end`](Agreement::end).

mod depth;
mod digest;
mod extent;
mod fingerprint;
mod opening;
mod recorder;
mod rows;
mod votes;

use std::io;
use std::path::{Path, PathBuf};

use lockstep_adaptive::{AdaptiveConfig, Decider, Seen};
use lockstep_backend::{Backend, NoteShape, PassKey, WorldRows};
use lockstep_types::EngineConfig;
use lockstep_types::step::{PlanPart, StageTimes, StepDigests, StepPlan};

use super::PlanError;
use super::faults::Faults;
use depth::DepthControl;
use digest::Digests;
use recorder::{Recorder, StepRecord};
use rows::StepRows;

pub use depth::named;
pub use extent::Extent;
pub use fingerprint::compare as compare_exchanges;
pub use votes::{alike_on_nodes, compare_passes, count, join, share_drafting, which};

/// Shape of the row that each rank brings to a pass as a note.
pub const NOTE: NoteShape = StepRows::NOTE;

/// One rank's part in the agreement.
#[derive(Debug)]
pub struct Agreement {
    /// Digests of everything that happened to the rank.
    pub digests: Digests,
    /// Faults that tests plant in the rank.
    pub faults: Faults,
    depth: DepthControl,
    rows: StepRows,
    /// Record of the current step, or of the last one.
    record: StepRecord,
    recorder: Recorder,
    /// Number of the rank's DP rank, and number of DP ranks.
    dp_rank: usize,
    dp_size: usize,
}

/// A step's plan, as one rank follows it.
#[derive(Debug, Clone, Copy)]
pub struct Planned<'a> {
    /// The plan.
    pub plan: &'a StepPlan,
    /// The part of the rank's DP rank.
    pub part: &'a PlanPart,
    /// Most drafts of a row that decodes.
    pub drafts: u32,
}

impl Agreement {
    /// Makes the agreement of a rank whose depth does not adapt yet, without faults.
    pub fn new(config: &EngineConfig, rank: usize) -> Self {
        Self {
            digests: Digests::new(),
            faults: Faults::default(),
            depth: DepthControl::fixed(&config.speculation),
            rows: StepRows::new(&config.parallel),
            record: StepRecord::default(),
            recorder: Recorder::new(),
            dp_rank: config.parallel.dp_rank(rank),
            dp_size: config.parallel.dp_size,
        }
    }

    /// Makes the ranks agree on the depth of each step from now on.
    pub fn adapt(&mut self, config: &AdaptiveConfig, decider: Decider) {
        self.depth = DepthControl::adaptive(config, decider);
    }

    /// Forgets everything that happened so far, for all ranks alike.
    pub fn forget(&mut self) {
        self.digests = Digests::new();
    }

    /// Returns true if DP ranks have requests of their own.
    fn data_parallel(&self) -> bool {
        self.dp_size > 1
    }

    /// Begins the record of a step.
    pub fn record_step(&mut self, plan: &StepPlan) {
        self.record = StepRecord {
            step: plan.step,
            depth: plan.draft_steps,
            ..StepRecord::default()
        };
    }

    /// Begins the step of a plan.
    ///
    /// # Errors
    /// [`PlanError::TooDeep`] if the plan asks for a deeper draft than was agreed.
    pub fn begin(&mut self, plan: &StepPlan) -> Result<(), PlanError> {
        self.depth.begin(plan)?;
        self.rows.begin();
        Ok(())
    }

    /// Records the size of the batch. A failed step is then written with the size of its batch.
    pub fn note_batch(&mut self, key: PassKey, wanted: usize) {
        self.record.requests = key.requests as u32;
        self.record.tokens = key.tokens as u32;
        self.record.longest = key.max_q_len as u32;
        self.record.wanted = wanted as u32;
        self.record.digests = self.digests.values();
    }

    /// Returns the rows of the step's pass that DP ranks have told each other.
    pub fn world(&self) -> &WorldRows {
        self.rows.world()
    }

    /// Decides, if the depth adapts and the rows have travelled: `with_pass` says that they
    /// travelled with the pass, not with a collective. Returns the depth of the step
    /// [`LAG`](lockstep_adaptive::LAG) after this one, and the policy's estimate of that step's
    /// time in microseconds.
    pub fn decide<B: Backend>(
        &mut self,
        plan: &StepPlan,
        with_pass: bool,
        backend: &mut B,
    ) -> Option<(u32, u32)> {
        if !self.depth.adapts() {
            return None;
        }
        let rows = match with_pass {
            true => self.rows.all()?,
            false => self.rows.arrived(backend)?,
        };
        self.depth.decide(rows, plan)
    }

    /// Ends a step with its measurements and times; returns the digests after it.
    pub fn end(&mut self, seen: Seen, times: StageTimes) -> StepDigests {
        self.depth.note(seen);
        (self.record.digests, self.record.times) = (self.digests.values(), times);
        self.digests.values()
    }

    /// Keeps the record of the step that ended, or failed.
    pub fn keep_record(&mut self) {
        self.recorder.note(self.record);
    }

    /// Writes the last steps of rank `rank` to a new file in `folder`: see [`StepRecord`].
    ///
    /// # Errors
    /// [`io::Error`].
    pub fn write_steps(&self, folder: &Path, rank: usize) -> io::Result<PathBuf> {
        self.recorder.write(folder, rank)
    }
}
