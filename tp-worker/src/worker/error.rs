//! Errors that stop a worker.

use lockstep_adaptive::{Row, UnknownPolicy};
use lockstep_backend::{BackendError, CollectiveCall, PassKey};
use lockstep_collective::{CollectiveError, Stall};
use lockstep_devices::DeviceError;
use lockstep_model::ModelError;
use lockstep_speculation::DraftError;
use lockstep_types::step::Difference;

use super::pass_start::PassStart;
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
    /// The configuration names a policy that this program does not have.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// Masks of constrained requests can't be where they are wanted.
    #[error("{0}")]
    Masks(String),
    /// The device can't be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The ranks' collectives took more memory of the device than was kept for them, and the
    /// rest does not fit.
    #[error(
        "NCCL has taken {taken} of the GPU, where {kept} were kept for it and no more is free: \
         set NCCL_MAX_CTAS to 8 or less, unset NCCL_MIN_CTAS and NCCL_BUFFSIZE, lower \
         --mem-fraction-static or --max-total-tokens, or give --collective-backend host"
    )]
    Exchange {
        /// Memory that was taken, for people.
        taken: String,
        /// Memory that was kept, for people.
        kept: String,
    },
    /// The scheduler sent a plan that can't be followed.
    #[error("plan {step} cannot be followed: {reason}")]
    Plan {
        /// The plan's number.
        step: u64,
        /// The reason why it can't.
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
    /// A count does not fit 32 bits.
    #[error("{count} {what} are more than 4294967295; lower {remedy}")]
    TooMany {
        /// Name of the counted things.
        what: &'static str,
        /// Number of the things.
        count: usize,
        /// The option to lower.
        remedy: &'static str,
    },
    /// Prepared sizes leave out one of the depths that may be run.
    #[error("depth {depth} needs a pass of {key}, and none is prepared")]
    TierTooLarge {
        /// The depth.
        depth: u32,
        /// The size of its batch.
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
        /// Digest of this rank's passes.
        ours: u64,
        /// The first rank that differs.
        peer: usize,
        /// Digest of that rank's passes.
        theirs: u64,
    },
    /// Recorded passes of two ranks would exchange different data.
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
        /// The size of the first pass that differs.
        key: PassKey,
        /// The first collective of the pass that differs, counted from 0.
        at: usize,
        /// This rank's collective there, if it has one.
        ours: Option<CollectiveCall>,
        /// The other rank's collective there, if it has one.
        theirs: Option<CollectiveCall>,
    },
    /// Recorded passes were void again before all ranks had recorded theirs.
    #[error(
        "the passes that ranks {ranks:?} recorded were void again once drafting had recorded its \
         own: this is a bug, and --disable-cuda-graph goes around it"
    )]
    Unrecorded {
        /// The ranks whose passes were void.
        ranks: Vec<usize>,
    },
    /// Ranks took different steps.
    #[error("ranks {} and {} diverged in step {step}: {difference}", ranks.0, ranks.1)]
    Diverged {
        /// The step.
        step: u64,
        /// The two ranks.
        ranks: (usize, usize),
        /// The digests of both.
        difference: Difference,
    },
    /// Ranks began a step in different states.
    #[error("rank {rank} began {ours}, rank {peer} {theirs}: the ranks have diverged")]
    RowsDiffer {
        /// The rank that reports.
        rank: usize,
        /// The row that it brought to the step.
        ours: Box<Row>,
        /// The rank that differs.
        peer: usize,
        /// The row that the other rank brought.
        theirs: Box<Row>,
    },
    /// Ranks were about to begin different passes.
    #[error("rank {rank} began {ours}, rank {peer} {theirs}: the ranks have diverged")]
    BegunDiffer {
        /// The rank that reports.
        rank: usize,
        /// The pass that it was about to begin.
        ours: Box<PassStart>,
        /// The rank that differs.
        peer: usize,
        /// The pass that the other rank was about to begin.
        theirs: Box<PassStart>,
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
        /// The lead of the DP rank.
        lead: usize,
        /// The row that the lead brought to the step.
        ours: Box<Row>,
        /// The rank that differs.
        peer: usize,
        /// The row that the other rank brought.
        theirs: Box<Row>,
    },
    /// The data that peers bring to a step did not come in time.
    #[error("step {step}: {waited}")]
    Late {
        /// The step.
        step: u64,
        /// The error of the collective that timed out or stalled. It names the ranks and the
        /// operation.
        waited: Box<Self>,
    },
    /// A test asks for an unknown fault.
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
    /// Returns the error of a collective, if the collective failed and nothing else did.
    pub(super) fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Backend(BackendError::Collective(cause))
            | Self::Model(ModelError::Backend(BackendError::Collective(cause))) => Some(cause),
            Self::Late { waited, .. } => waited.collective(),
            _ => None,
        }
    }

    /// Adds the step's number to an error of peers that came late or not at all. Other errors
    /// of a step have the number already.
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

    /// Returns true if ranks, or a rank and its scheduler, were found to differ.
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

/// Describes an exchange of a pass, for people.
fn exchange(exchanged: Option<&CollectiveCall>) -> String {
    exchanged.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

/// Describes a row by the fields that the ranks of one DP rank share.
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
