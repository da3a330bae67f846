//! What stops a worker.

use lockstep_adaptive::{Row, UnknownPolicy};
use lockstep_backend::{BackendError, PassKey};
use lockstep_collective::CollectiveError;
use lockstep_devices::DeviceError;
use lockstep_model::ModelError;
use lockstep_speculation::DraftError;
use lockstep_types::step::{Difference, PartBounds};

use super::begun::Begun;

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
    /// Whether ranks, or a rank and its scheduler, were found to differ.
    pub fn is_divergence(&self) -> bool {
        match self {
            Self::Plan { .. }
            | Self::PassesDiffer { .. }
            | Self::Diverged { .. }
            | Self::RowsDiffer { .. }
            | Self::BegunDiffer { .. }
            | Self::GroupRowsDiffer { .. }
            | Self::Model(ModelError::World { .. }) => true,
            Self::Backend(BackendError::Collective(cause))
            | Self::Model(ModelError::Backend(BackendError::Collective(cause))) => matches!(
                **cause,
                CollectiveError::Mismatch { .. }
                    | CollectiveError::Attached { .. }
                    | CollectiveError::Disagree { .. }
            ),
            _ => false,
        }
    }
}

impl From<CollectiveError> for WorkerError {
    fn from(error: CollectiveError) -> Self {
        Self::Backend(error.into())
    }
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

/// A plan that contradicts what the worker knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A plan is missing or came twice.
    #[error("plan {expected} was due")]
    OutOfOrder {
        /// The number that was due.
        expected: u64,
    },
    /// A plan without a part for this rank.
    #[error("it has {parts} parts, and none for DP rank {dp_rank}")]
    NoPart {
        /// Its parts.
        parts: usize,
        /// This rank's DP rank.
        dp_rank: usize,
    },
    /// A plan drafts deeper than the ranks have agreed.
    #[error("{asked} draft steps are asked for, {agreed} are agreed")]
    TooDeep {
        /// What the plan says.
        asked: u32,
        /// What the ranks have agreed on.
        agreed: u32,
    },
    /// The opening exchange has brought nothing.
    #[error("the ranks' rows have not travelled with the opening exchange")]
    NoRows,
    /// A DP rank's batch has become larger than the plan lets it.
    #[error("DP rank {dp_rank} brings {row}, and its part allows {most}")]
    BeyondPart {
        /// The DP rank.
        dp_rank: usize,
        /// The most that there may be.
        most: PartBounds,
        /// What there is.
        row: PartBounds,
    },
    /// No such slot.
    #[error("slot {slot} does not exist, there are {slots}")]
    UnknownSlot {
        /// The slot.
        slot: u32,
        /// How many exist.
        slots: usize,
    },
    /// The slot is in use already.
    #[error("slot {slot} is opened while it is open")]
    AlreadyOpen {
        /// The slot.
        slot: u32,
    },
    /// The slot is free.
    #[error("slot {slot} is not open")]
    NotOpen {
        /// The slot.
        slot: u32,
    },
    /// A slot has two rows.
    #[error("slot {slot} is extended twice")]
    ExtendedTwice {
        /// The slot.
        slot: u32,
    },
    /// The lengths of an opened slot do not fit each other.
    #[error(
        "slot {slot} is opened with {tokens} tokens, a prompt of {prompt_len} and {cached_len} cached"
    )]
    Lengths {
        /// The slot.
        slot: u32,
        /// Tokens brought.
        tokens: usize,
        /// Where the output begins.
        prompt_len: u32,
        /// Tokens whose KV is in place.
        cached_len: u32,
    },
    /// Scores are wanted of positions whose predecessor is not computed.
    #[error(
        "slot {slot} wants log-probabilities from position {start} with {cached_len} tokens cached; \
         at most {} may be", start.saturating_sub(1)
    )]
    ScoredPrefixCached {
        /// The slot.
        slot: u32,
        /// First scored position.
        start: u32,
        /// Tokens whose KV is in place.
        cached_len: u32,
    },
    /// A token id is not in the vocabulary.
    #[error("slot {slot} brings token {token}, outside the vocabulary of {vocab}")]
    Token {
        /// The slot.
        slot: u32,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A prefill passes the end of the known tokens.
    #[error("slot {slot} prefills {prefill_len} tokens from {kv_len} on, but {tokens} are known")]
    PrefillPastEnd {
        /// The slot.
        slot: u32,
        /// Tokens wanted.
        prefill_len: u32,
        /// Tokens committed.
        kv_len: u32,
        /// Tokens known.
        tokens: usize,
    },
    /// A decode step of a slot that has not exactly one uncommitted token.
    #[error("slot {slot} decodes with {kv_len} of {tokens} tokens committed; all but one must be")]
    NotDecoding {
        /// The slot.
        slot: u32,
        /// Tokens committed.
        kv_len: u32,
        /// Tokens known.
        tokens: usize,
    },
    /// Sampling where a known token follows, or a decode step that samples nothing.
    #[error("slot {slot} ends at {end} of {tokens} tokens with sample = {sample}")]
    Sample {
        /// The slot.
        slot: u32,
        /// End of the row.
        end: u32,
        /// Tokens known.
        tokens: usize,
        /// What the plan wants.
        sample: bool,
    },
    /// A slot grows past the positions the model was set up for.
    #[error("slot {slot} reaches {end} tokens, the context holds {limit}")]
    Context {
        /// The slot.
        slot: u32,
        /// Its length after the step.
        end: u32,
        /// The most there can be.
        limit: usize,
    },
    /// A page number that does not exist.
    #[error("slot {slot} is granted page {page}, there are {pages}")]
    UnknownPage {
        /// The slot.
        slot: u32,
        /// The page.
        page: u32,
        /// How many exist.
        pages: usize,
    },
    /// A page table is full.
    #[error("slot {slot} is granted more than {width} pages")]
    TableFull {
        /// The slot.
        slot: u32,
        /// The most there can be.
        width: usize,
    },
    /// A row writes past the slot's pages.
    #[error("slot {slot} needs {needed} pages for {end} tokens and has {granted}")]
    PagesMissing {
        /// The slot.
        slot: u32,
        /// Its length after the step.
        end: u32,
        /// Pages that takes.
        needed: usize,
        /// Pages it has.
        granted: usize,
    },
    /// A row writes into a page that is in several page tables.
    #[error("slot {slot} writes to page {page}, which stands in {owners} page tables")]
    PageShared {
        /// The slot.
        slot: u32,
        /// The page.
        page: u32,
        /// Page tables it stands in.
        owners: u32,
    },
    /// No prepared pass fits the batch.
    #[error("no pass is prepared for {0}")]
    NoPass(PassKey),
}
