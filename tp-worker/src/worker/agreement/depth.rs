//! Agreement on the depth that the group drafts at: this rank's row for the decision, and the
//! decision. All ranks decide alike.

use lockstep_adaptive::{AdaptiveConfig, Decider, Digest, Row, Seen};
use lockstep_collective::CollectiveError;
use lockstep_types::{
    SpeculationConfig,
    step::{PlanPart, StepPlan},
};

use crate::worker::{PlanError, WorkerError, pass_start::PassStart};

/// The depth that a rank's steps draft at.
#[derive(Debug)]
pub enum DepthControl {
    /// Plans may always ask for so many draft steps.
    Fixed(u32),
    /// The ranks agree on a depth in every step.
    Adaptive(Box<AgreedDepth>),
}

/// A rank's part in the agreement. Its row travels with the step's first collective. So ranks
/// that differ in plan, drafts, tokens or earlier decisions learn it before anything of the
/// step is committed. They also learn it before the pass, where differing data would not show.
#[derive(Debug)]
pub struct AgreedDepth {
    decider: Decider,
    /// Depths that this rank can run, as bits.
    depths: u32,
    /// Measurements of the last step on this rank.
    seen: Seen,
}

impl DepthControl {
    /// Makes a depth that does not adapt.
    pub fn fixed(speculation: &SpeculationConfig) -> Self {
        Self::Fixed(u32::try_from(speculation.num_steps).unwrap_or(u32::MAX))
    }

    /// Makes a depth that the ranks agree on.
    pub fn adaptive(config: &AdaptiveConfig, decider: Decider) -> Self {
        Self::Adaptive(Box::new(AgreedDepth {
            decider,
            depths: config.depths(),
            seen: Seen::default(),
        }))
    }

    /// Returns true if ranks agree on the depth.
    pub fn adapts(&self) -> bool {
        matches!(self, Self::Adaptive(_))
    }

    /// Begins the step of a plan.
    ///
    /// # Errors
    /// [`PlanError::TooDeep`] if the plan asks for more than was agreed.
    pub fn begin(&mut self, plan: &StepPlan) -> Result<(), PlanError> {
        let asked = plan.draft_steps;
        let agreed = match self {
            Self::Fixed(depth) => *depth,
            Self::Adaptive(agreement) => agreement.decider.depth(),
        };
        if asked > agreed {
            return Err(PlanError::TooDeep { asked, agreed });
        }
        if let Self::Adaptive(agreement) = self {
            agreement.decider.begin();
        }
        Ok(())
    }

    /// Returns this rank's row for the step that was begun, without the sizes of its batch.
    /// `digest` covers what all ranks share so far. Only the lead of a DP rank counts requests,
    /// so `leads` is true there.
    pub fn row(&self, plan: &StepPlan, part: &PlanPart, leads: bool, mut digest: Digest) -> Row {
        let mut row = Row {
            step: plan.step,
            depth: plan.draft_steps,
            ..Row::default()
        };
        if let Self::Adaptive(agreement) = self {
            digest.word(agreement.decider.digest());
            row.depths = agreement.depths;
            row.seen = agreement.seen;
            if leads {
                (row.decodes, row.joined, row.unfinished) = decodes(part);
            }
        }
        row.digest = digest.value();
        row
    }

    /// Decides from all ranks' rows. Returns the depth of the step
    /// [`LAG`](lockstep_adaptive::LAG) after this one, and the policy's estimate of that step's
    /// time in microseconds. Returns `None` if the depth does not adapt.
    pub fn decide(&mut self, rows: &[Row], plan: &StepPlan) -> Option<(u32, u32)> {
        let Self::Adaptive(agreement) = self else {
            return None;
        };
        let depth = agreement.decider.decide(rows, plan.depth_range);
        Some((depth, agreement.decider.outlook().step_us))
    }

    /// Keeps the measurements of a step for the row of the next one.
    pub fn note(&mut self, seen: Seen) {
        if let Self::Adaptive(agreement) = self {
            agreement.seen = seen;
        }
    }
}

/// Counts rows of a part: rows that decode after the part, for which a depth is decided; rows
/// among these whose prompts end with the part; and rows whose prompts go on.
fn decodes(part: &PlanPart) -> (u32, u32, u32) {
    let decodes = part.extends.iter().filter(|row| row.sample);
    let joined = decodes.clone().filter(|row| row.prefill_len > 0);
    let decodes = decodes.count();
    let unfinished = part.extends.len() - decodes;
    (decodes as u32, joined.count() as u32, unfinished as u32)
}

/// Decodes the rows in an error of ranks that differ, so that it names them.
pub fn named(error: WorkerError) -> WorkerError {
    let Some(cause) = error.collective() else {
        return error;
    };
    if let CollectiveError::Disagree {
        rank,
        ours,
        peer,
        theirs,
    } = cause
    {
        let words = (ours.as_slice().try_into(), theirs.as_slice().try_into());
        return match words {
            (Ok(ours), Ok(theirs)) => WorkerError::BegunDiffer {
                rank: *rank,
                ours: Box::new(PassStart::from_words(ours)),
                peer: *peer,
                theirs: Box::new(PassStart::from_words(theirs)),
            },
            _ => error,
        };
    }
    let CollectiveError::Attached {
        rank,
        ours,
        peer,
        theirs,
        ..
    } = cause
    else {
        return error;
    };
    match (row_of(ours), row_of(theirs)) {
        (Some(ours), Some(theirs)) => WorkerError::RowsDiffer {
            rank: *rank,
            ours: Box::new(ours),
            peer: *peer,
            theirs: Box::new(theirs),
        },
        _ => error,
    }
}

/// Decodes an attached row. Returns `None` if it has fewer words than all ranks share.
fn row_of(words: &[u32]) -> Option<Row> {
    let mut all = [0; Row::WORDS];
    let known = words.len().min(Row::WORDS);
    all[..known].copy_from_slice(&words[..known]);
    (known >= Row::SHARED).then(|| Row::from_words(&all))
}
