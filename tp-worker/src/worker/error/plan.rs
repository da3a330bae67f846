//! What is wrong with a plan.

use lockstep_backend::PassKey;
use lockstep_types::step::PartBounds;

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
