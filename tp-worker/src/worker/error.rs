//! What stops a worker.

use lockstep_adaptive::{Row, UnknownPolicy};
use lockstep_backend::{BackendError, Exchanged, PassKey};
use lockstep_collective::{CollectiveError, Stall};
use lockstep_devices::DeviceError;
use lockstep_model::ModelError;
use lockstep_speculation::DraftError;
use lockstep_types::step::Difference;

use super::begun::Begun;
pub use plan::PlanError;

mod plan;

/// A worker that can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The model can't be loaded or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device or a collective failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// New weights can't be used; the worker goes on with the old ones.
    #[error("{0}")]
    Reload(String),
    /// The drafter can't be built or run.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The configuration names a policy of another program.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The CPU backend can't be built.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What ranks exchange by took more of the device than was kept for it, and what is
    /// still to come finds no room.
    #[error(
        "NCCL has taken {taken} of the GPU, where {kept} were kept for it and no more is free: \
         set NCCL_MAX_CTAS to 8 or less, unset NCCL_MIN_CTAS and NCCL_BUFFSIZE, lower \
         --mem-fraction-static or --max-total-tokens, or give --collective-backend host"
    )]
    Exchange {
        /// What was taken, for people.
        taken: String,
        /// What was kept.
        kept: String,
    },
    /// The scheduler sent something that can't be done.
    #[error("plan {step} cannot be followed: {reason}")]
    Plan {
        /// The plan's number.
        step: u64,
        /// What is wrong with it.
        reason: PlanError,
    },
    /// The backend belongs to another group than the configuration says.
    #[error(
        "the configuration makes this rank {rank} of {size}, its collectives say {} of {}",
        found.0, found.1
    )]
    Group {
        /// Rank by the configuration.
        rank: usize,
        /// Ranks by the configuration.
        size: usize,
        /// Rank and ranks by the backend.
        found: (usize, usize),
    },
    /// Something would not fit its 32-bit numbers.
    #[error("{count} {what} are more than 4294967295; lower {remedy}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The option to lower.
        remedy: &'static str,
    },
    /// Sizes were computed without one of the depths that may be run.
    #[error("depth {depth} needs a pass of {key}, and none is prepared")]
    TierTooLarge {
        /// The depth.
        depth: u32,
        /// The batch.
        key: PassKey,
    },
    /// Two ranks prepared different passes.
    #[error(
        "rank {rank} prepared passes {ours:016x}, rank {peer} {theirs:016x}: \
         all ranks need the same version, model and configuration"
    )]
    PassesDiffer {
        /// This rank.
        rank: usize,
        /// Its digest.
        ours: u64,
        /// The first rank that differs.
        peer: usize,
        /// Its digest.
        theirs: u64,
    },
    /// Two ranks' recorded passes would exchange different things.
    #[error(
        "rank {rank} exchanges {} as collective {at} of a pass of {key}, rank {peer} {}: they \
         would wait for each other; all ranks need the same version, model and configuration",
        exchange(ours.as_ref()), exchange(theirs.as_ref())
    )]
    ExchangesDiffer {
        /// This rank.
        rank: usize,
        /// The first rank that differs.
        peer: usize,
        /// The first pass in which they differ.
        key: PassKey,
        /// The first collective of it, counted from 0.
        at: usize,
        /// This rank's, if it has one there.
        ours: Option<Exchanged>,
        /// The other's.
        theirs: Option<Exchanged>,
    },
    /// What ranks recorded of their passes did not last until all had recorded theirs.
    #[error(
        "the passes that ranks {ranks:?} recorded were void again once drafting had recorded its \
         own: this is a bug, and --disable-cuda-graph goes around it"
    )]
    Unrecorded {
        /// On which ranks.
        ranks: Vec<usize>,
    },
    /// Ranks took different steps.
    #[error("ranks {} and {} diverged in step {step}: {difference}", ranks.0, ranks.1)]
    Diverged {
        /// The step.
        step: u64,
        /// The two.
        ranks: (usize, usize),
        /// Their digests.
        difference: Difference,
    },
    /// Ranks began a step in different states.
    #[error("rank {rank} began {ours}, rank {peer} {theirs}: the ranks have diverged")]
    RowsDiffer {
        /// The rank that reports.
        rank: usize,
        /// What it brought to the step.
        ours: Box<Row>,
        /// The rank that differs.
        peer: usize,
        /// What that one brought.
        theirs: Box<Row>,
    },
    /// Ranks were about to begin different passes.
    #[error("rank {rank} began {ours}, rank {peer} {theirs}: the ranks have diverged")]
    BegunDiffer {
        /// The rank that reports.
        rank: usize,
        /// What it was about to begin.
        ours: Box<Begun>,
        /// The rank that differs.
        peer: usize,
        /// What that one was.
        theirs: Box<Begun>,
    },
    /// Ranks of one DP rank began a step in different states.
    #[error(
        "DP rank {dp_rank}: rank {lead} began {}, rank {peer} {}: the ranks have diverged",
        of_group(ours),
        of_group(theirs)
    )]
    GroupRowsDiffer {
        /// The DP rank.
        dp_rank: usize,
        /// The rank that leads it.
        lead: usize,
        /// What that one brought to the step.
        ours: Box<Row>,
        /// The rank that differs.
        peer: usize,
        /// What that one brought.
        theirs: Box<Row>,
    },
    /// What peers bring to a step did not come in time.
    #[error("step {step}: {waited}")]
    Late {
        /// The step.
        step: u64,
        /// Who waited for whom, and for what.
        waited: Box<Self>,
    },
    /// A test wants a fault that there is none of.
    #[error("TEST_FAULT_IN_RANK={0}: write RANK:STEP:KIND, see tp-worker/src/worker/faults.rs")]
    Fault(String),
    /// An earlier step failed.
    #[error("the worker stopped at an earlier step; start the group again")]
    Broken,
    /// A rank's thread is gone without a reason.
    #[error("rank {rank} ended")]
    Ended {
        /// The rank.
        rank: usize,
    },
}

impl WorkerError {
    /// What a collective of ranks failed with, where that is all.
    pub(super) fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Backend(BackendError::Collective(cause))
            | Self::Model(ModelError::Backend(BackendError::Collective(cause))) => Some(cause),
            Self::Late { waited, .. } => waited.collective(),
            _ => None,
        }
    }

    /// Names the step in which peers came late or not at all; what else can be wrong with
    /// a step says so itself.
    pub(super) fn in_step(self, step: u64) -> Self {
        let late = self.collective().is_some_and(|cause| {
            matches!(
                cause,
                CollectiveError::Timeout { .. } | CollectiveError::Stalled { .. }
            )
        });
        match late {
            true => Self::Late {
                step,
                waited: Box::new(self),
            },
            false => self,
        }
    }

    /// Whether ranks, or a rank and its scheduler, were found to differ.
    pub fn is_divergence(&self) -> bool {
        match self {
            Self::Plan { .. }
            | Self::PassesDiffer { .. }
            | Self::ExchangesDiffer { .. }
            | Self::Diverged { .. }
            | Self::RowsDiffer { .. }
            | Self::BegunDiffer { .. }
            | Self::GroupRowsDiffer { .. }
            | Self::Model(ModelError::World { .. }) => true,
            _ => self.collective().is_some_and(|cause| {
                matches!(
                    cause,
                    CollectiveError::Mismatch { .. }
                        | CollectiveError::Stalled {
                            stall: Stall::Diverged { .. },
                            ..
                        }
                        | CollectiveError::Attached { .. }
                        | CollectiveError::Disagree { .. }
                )
            }),
        }
    }
}

impl From<CollectiveError> for WorkerError {
    fn from(error: CollectiveError) -> Self {
        Self::Backend(error.into())
    }
}

/// What a pass exchanges, if it does.
fn exchange(exchanged: Option<&Exchanged>) -> String {
    exchanged.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

/// A row, by what the ranks of one DP rank share.
fn of_group(row: &Row) -> String {
    let Row {
        step,
        group_digest,
        tokens,
        requests,
        wanted,
        longest,
        ..
    } = row;
    format!(
        "step {step} with {requests} rows of {tokens} tokens, {longest} in the longest, {wanted} of \
         them wanted (group digest {group_digest:016x})"
    )
}
