//! How deep the group drafts: what this rank brings to the decision, and the
//! decision, which all ranks come to alike.

use lockstep_adaptive::{AdaptiveConfig, Decider, Digest, Row, Seen};
use lockstep_backend::{Axis, Backend, BackendError};
use lockstep_collective::CollectiveError;
use lockstep_model::ModelError;
use lockstep_types::{
    SpeculationConfig,
    step::{PlanPart, StageTimes, StepPlan},
};

use super::{PlanError, Worker, WorkerError};

/// The depths of a rank's steps.
#[derive(Debug)]
pub enum DepthControl {
    /// Plans may always ask for so many draft steps.
    Fixed(u32),
    /// The ranks agree in every step.
    Adaptive(Box<Agreement>),
}

/// A rank's part in the agreement. Its row travels with the step's first
/// collective, so that ranks that differ in plan, drafts, tokens or in what they
/// decided before learn it before anything of the step is committed; and before
/// the pass, where data that differs would not tell.
#[derive(Debug)]
pub struct Agreement {
    decider: Decider,
    /// Depths that this rank can run, as bits.
    depths: u32,
    /// What the last step has shown here.
    seen: Seen,
    /// Every rank's words, and what they say.
    words: Vec<u32>,
    rows: Vec<Row>,
}

impl DepthControl {
    /// A depth that does not adapt.
    pub fn fixed(speculation: &SpeculationConfig) -> Self {
        Self::Fixed(u32::try_from(speculation.num_steps).unwrap_or(u32::MAX))
    }

    /// One that a group of `ranks` ranks agrees on.
    pub fn adaptive(config: &AdaptiveConfig, decider: Decider, ranks: usize) -> Self {
        Self::Adaptive(Box::new(Agreement {
            decider,
            depths: config.depths(),
            seen: Seen::default(),
            words: vec![0; ranks * Row::WORDS],
            rows: Vec::with_capacity(ranks),
        }))
    }

    /// Begins a plan's step with this rank's part; `digest` is of all plans so far, drafts and tokens.
    ///
    /// # Errors
    /// [`WorkerError::Plan`] when the plan asks for more than was agreed;
    /// [`WorkerError::Backend`] when the group is broken.
    pub fn begin<B: Backend>(
        &mut self,
        backend: &mut B,
        plan: &StepPlan,
        part: &PlanPart,
        digest: Digest,
    ) -> Result<(), WorkerError> {
        let agreed = match self {
            Self::Fixed(depth) => *depth,
            Self::Adaptive(agreement) => agreement.decider.depth(),
        };
        if plan.draft_steps > agreed {
            return Err(WorkerError::Plan {
                step: plan.step,
                reason: PlanError::TooDeep {
                    asked: plan.draft_steps,
                    agreed,
                },
            });
        }
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Adaptive(agreement) => agreement.begin(backend, plan, part, digest),
        }
    }

    /// Sees to it that the rows travel with the pass that comes, or before it.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] when the group is broken, or ranks differ.
    pub fn send<B: Backend>(&mut self, backend: &mut B) -> Result<(), WorkerError> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Adaptive(agreement) => agreement.send(backend),
        }
    }

    /// Decides, if the rows have travelled: the depth of the step
    /// [`LAG`](lockstep_adaptive::LAG) after this one, and what its policy expects
    /// that it takes, in microseconds.
    pub fn decide(&mut self, backend: &mut impl Backend, plan: &StepPlan) -> Option<(u32, u32)> {
        match self {
            Self::Fixed(_) => None,
            Self::Adaptive(agreement) => agreement.decide(backend, plan),
        }
    }

    /// Notes what a step has shown, for the next one's row.
    pub fn note(&mut self, seen: Seen) {
        if let Self::Adaptive(agreement) = self {
            agreement.seen = seen;
        }
    }
}

impl Agreement {
    fn begin<B: Backend>(
        &mut self,
        backend: &mut B,
        plan: &StepPlan,
        part: &PlanPart,
        mut digest: Digest,
    ) -> Result<(), WorkerError> {
        self.decider.begin();
        digest.word(self.decider.digest());
        let (decodes, joined) = match backend.leads(Axis::Attention) {
            true => decodes(part),
            false => (0, 0),
        };
        let row = Row {
            step: plan.step,
            depth: plan.draft_steps,
            digest: digest.value(),
            depths: self.depths,
            decodes,
            joined,
            seen: self.seen,
            // All ranks run the same.
            ..Row::default()
        };
        backend
            .control(Axis::World)
            .attach(Row::SHARED, &row.to_words())?;
        Ok(())
    }

    /// Rows that drafts have taken along are there already. All ranks know the
    /// same of that.
    fn send<B: Backend>(&mut self, backend: &mut B) -> Result<(), WorkerError> {
        let apart = !backend.words_ride_on_data();
        if apart && !backend.control(Axis::World).attached(&mut self.words) {
            backend.control(Axis::World).barrier()?;
        }
        Ok(())
    }

    fn decide(&mut self, backend: &mut impl Backend, plan: &StepPlan) -> Option<(u32, u32)> {
        // A step without a collective has brought no rows: the same on all ranks.
        if !backend.control(Axis::World).attached(&mut self.words) {
            return None;
        }
        let (rows, _) = self.words.as_chunks::<{ Row::WORDS }>();
        self.rows.clear();
        self.rows.extend(rows.iter().map(Row::from_words));
        let depth = self.decider.decide(&self.rows, plan.depth_range);
        Some((depth, self.decider.outlook().step_us))
    }
}

impl<B: Backend + 'static> Worker<B> {
    /// What a step has shown on this rank. Only one that verifies counts requests.
    pub(super) fn seen(&self, plan: &StepPlan, times: StageTimes) -> Seen {
        let prompts = self.tasks.iter().filter(|task| !task.decodes);
        let mut seen = Seen {
            depth: plan.draft_steps,
            tokens: self.batch.key().tokens as u32,
            prompt_tokens: prompts.map(|task| task.q_len).sum(),
            draft_us: times.draft_us,
            verify_us: times.verify_us,
            extend_us: times.extend_us,
            ..Seen::default()
        };
        if self.backend.leads(Axis::Attention) {
            let rows = self.tasks.iter().zip(self.outcomes.of(&self.tasks));
            for (task, outcome) in rows.filter(|(task, _)| task.decodes) {
                seen.decodes += 1;
                seen.count(task.draft_depth, outcome.path.len() as u32);
            }
        }
        seen
    }
}

/// Rows that decode after a part, for which a depth is decided, and those of them
/// whose prompts end with it.
fn decodes(part: &PlanPart) -> (u32, u32) {
    let decodes = part.extends.iter().filter(|row| row.sample);
    let joined = decodes.clone().filter(|row| row.prefill_len > 0);
    (decodes.count() as u32, joined.count() as u32)
}

/// Names the rows of ranks that differ.
pub fn named(error: WorkerError) -> WorkerError {
    let cause = match &error {
        WorkerError::Backend(BackendError::Collective(cause))
        | WorkerError::Model(ModelError::Backend(BackendError::Collective(cause))) => cause,
        _ => return error,
    };
    let CollectiveError::Attached {
        rank,
        ours,
        peer,
        theirs,
        ..
    } = &**cause
    else {
        return error;
    };
    match (ours.first_chunk(), theirs.first_chunk()) {
        (Some(ours), Some(theirs)) => WorkerError::RowsDiffer {
            rank: *rank,
            ours: Box::new(Row::from_words(ours)),
            peer: *peer,
            theirs: Box::new(Row::from_words(theirs)),
        },
        _ => error,
    }
}
