//! Errors in a plan.

use lockstep_backend::PassKey;
use lockstep_types::step::PartBounds;

/// A contradiction between a plan and the worker's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A plan is missing or came twice.
    #[error("plan {expected} was due")]
    OutOfOrder {
        /// The number that was due.
        expected: u64,
    },
    /// The plan has no part for this rank.
    #[error("it has {parts} parts, and none for DP rank {dp_rank}")]
    NoPart {
        /// Number of its parts.
        parts: usize,
        /// This rank's DP rank.
        dp_rank: usize,
    },
    /// A plan drafts deeper than the ranks have agreed.
    #[error("{asked} draft steps are asked for, {agreed} are agreed")]
    TooDeep {
        /// Draft steps of the plan.
        asked: u32,
        /// Draft steps that the ranks have agreed on.
        agreed: u32,
    },
    /// The opening exchange has brought no rows.
    #[error("the ranks' rows have not travelled with the opening exchange")]
    NoRows,
    /// A DP rank's batch is larger than the plan allows.
    #[error("DP rank {dp_rank} brings {row}, and its part allows {most}")]
    BeyondPart {
        /// The DP rank.
        dp_rank: usize,
        /// The size that the plan allows.
        most: PartBounds,
        /// The size of the batch.
        row: PartBounds,
    },
    /// The slot does not exist.
    #[error("slot {slot} does not exist, there are {slots}")]
    UnknownSlot {
        /// The slot.
        slot: u32,
        /// Number of slots.
        slots: usize,
    },
    /// The slot is in use already.
    #[error("slot {slot} is opened while it is open")]
    AlreadyOpen {
        /// The slot.
        slot: u32,
    },
    /// The slot is not in use.
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
        /// Number of tokens that the plan brings.
        tokens: usize,
        /// Position of the first output token.
        prompt_len: u32,
        /// Number of tokens whose keys and values are in the cache.
        cached_len: u32,
    },
    /// Log-probabilities are wanted for positions whose predecessor is not computed.
    #[error(
        "slot {slot} wants log-probabilities from position {start} with {cached_len} tokens cached; \
         at most {} may be", start.saturating_sub(1)
    )]
    ScoredPrefixCached {
        /// The slot.
        slot: u32,
        /// First position with a log-probability.
        start: u32,
        /// Number of tokens whose keys and values are in the cache.
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
        /// Number of tokens to prefill.
        prefill_len: u32,
        /// Number of tokens committed.
        kv_len: u32,
        /// Number of tokens known.
        tokens: usize,
    },
    /// A decode step of a slot whose uncommitted tokens are not exactly one.
    #[error("slot {slot} decodes with {kv_len} of {tokens} tokens committed; all but one must be")]
    NotDecoding {
        /// The slot.
        slot: u32,
        /// Number of tokens committed.
        kv_len: u32,
        /// Number of tokens known.
        tokens: usize,
    },
    /// A row samples where a known token follows, or a decode step samples nothing.
    #[error("slot {slot} ends at {end} of {tokens} tokens with sample = {sample}")]
    Sample {
        /// The slot.
        slot: u32,
        /// End of the row.
        end: u32,
        /// Number of tokens known.
        tokens: usize,
        /// True if the plan wants a token sampled.
        sample: bool,
    },
    /// A slot grows past the positions the model was set up for.
    #[error("slot {slot} reaches {end} tokens, the context holds {limit}")]
    Context {
        /// The slot.
        slot: u32,
        /// Length of the slot after the step.
        end: u32,
        /// The most positions that a slot may have.
        limit: usize,
    },
    /// Pages that are not one of each group of layers in turn.
    #[error("slot {slot} is granted {pages} pages, not as many of each of the {groups} groups")]
    UnevenPages {
        /// The slot.
        slot: u32,
        /// Number of pages, of all groups together.
        pages: usize,
        /// Number of groups of layers.
        groups: usize,
    },
    /// A page number that does not exist.
    #[error("slot {slot} is granted page {page}, there are {pages}")]
    UnknownPage {
        /// The slot.
        slot: u32,
        /// The page.
        page: u32,
        /// Number of pages.
        pages: usize,
    },
    /// Page 0 is granted, which stands for none, where a query of the slot reads.
    #[error("slot {slot} is granted no page of group {group} for position {position}")]
    PageAbsent {
        /// The slot.
        slot: u32,
        /// The page's group of layers.
        group: usize,
        /// First position of the page.
        position: u32,
    },
    /// A page table is full.
    #[error("slot {slot} is granted more than {width} pages")]
    TableFull {
        /// The slot.
        slot: u32,
        /// The most pages that a page table may have.
        width: usize,
    },
    /// A row writes past the slot's pages.
    #[error("slot {slot} needs {needed} pages for {end} tokens and has {granted}")]
    PagesMissing {
        /// The slot.
        slot: u32,
        /// Length of the slot after the step.
        end: u32,
        /// Number of pages that this length takes.
        needed: usize,
        /// Number of pages that the slot has.
        granted: usize,
    },
    /// A row writes into a page that is in several page tables.
    #[error(
        "slot {slot} writes to page {page} of group {group}, which stands in {owners} page tables"
    )]
    PageShared {
        /// The slot.
        slot: u32,
        /// The page's group of layers.
        group: usize,
        /// The page.
        page: u32,
        /// Number of page tables that hold the page.
        owners: u32,
    },
    /// A slot has no recurrent state although the model's recurrent layers need one, or names one
    /// although the model has no such layers.
    #[error("slot {slot} {}", if *.wanted {
        "has no recurrent state, and the model has recurrent layers"
    } else {
        "names a recurrent state, and the model has no recurrent layers"
    })]
    StateMissing {
        /// The slot.
        slot: u32,
        /// True if the model has recurrent layers.
        wanted: bool,
    },
    /// A slot restores a recurrent state although its text begins, or none although it goes on.
    #[error(
        "slot {slot} is opened with {cached_len} cached tokens; a recurrent state is restored \
         exactly if there are any"
    )]
    StateRestore {
        /// The slot.
        slot: u32,
        /// Number of tokens whose keys and values are in the cache.
        cached_len: u32,
    },
    /// A number of a recurrent state that does not exist.
    #[error("slot {slot} names recurrent state {state}, there are {states}")]
    UnknownState {
        /// The slot.
        slot: u32,
        /// The state.
        state: u32,
        /// Number of states.
        states: usize,
    },
    /// A slot is given a recurrent state that is the live state of an open slot, restores it, or
    /// keeps a copy in it.
    #[error("slot {slot} names recurrent state {state}, which is the live state of slot {owner}")]
    StateOwned {
        /// The slot.
        slot: u32,
        /// The state.
        state: u32,
        /// The slot whose live state it is.
        owner: u32,
    },
    /// Two copies of one step would be written to one recurrent state.
    #[error(
        "slot {slot} keeps a copy in recurrent state {state}, which another copy is written to"
    )]
    StateKeptTwice {
        /// The slot.
        slot: u32,
        /// The state.
        state: u32,
    },
    /// Copies of a recurrent state that do not stand by ascending positions.
    #[error("slot {slot} keeps copies of its recurrent state out of order")]
    KeepOrder {
        /// The slot.
        slot: u32,
    },
    /// No prepared pass fits the batch.
    #[error("no pass is prepared for {0}")]
    NoPass(PassKey),
}
