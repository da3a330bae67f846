//! States of recurrent layers in a batch: which state a row goes on from, and what becomes of it.

use lockstep_types::StateLimits;

/// The state behind one row of a batch.
///
/// A row goes on from its live state in three steps: the records of its last pass that were
/// accepted are replayed, with the very roundings of plain tokens; then the row's tokens follow.
/// Committed tokens update the live state as well. Tokens to be verified leave it as it was after
/// the replay, and each writes a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowState {
    /// Number of the request's live state. No other row has it, and none keeps a copy in it.
    pub state: u32,
    /// Place of the request's records: its slot. No other row has it.
    pub records: u32,
    /// Half of the records that this pass writes, 0 or 1. The replay reads the other half, because
    /// a device may do both at once.
    pub side: u32,
    /// True if the live state is zero before the row, whatever it holds: a text begins.
    pub fresh: bool,
    /// True if the row's tokens go into the live state, and leave no records. Such a row has no
    /// mask.
    pub commits: bool,
    /// The accepted nodes of the request's last pass among [`crate::Batch::replays`].
    pub replays: Span,
    /// The copies that are kept on the way, among [`crate::Batch::keeps`].
    pub keeps: Span,
}

/// States of a device that runs no recurrent layers: there are none.
#[derive(Debug)]
pub enum NoStates {}

/// A part of a list of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Index of the first element.
    pub start: u32,
    /// Number of elements.
    pub len: u32,
}

impl Span {
    /// Returns the elements of `list`.
    pub fn of<T>(self, list: &[T]) -> &[T] {
        &list[self.start as usize..][..self.len as usize]
    }

    /// Returns true if the part lies within a list of `len` elements.
    pub(crate) fn within(self, len: usize) -> bool {
        self.start as usize + self.len as usize <= len
    }
}

/// A copy of a row's committed state that is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateKeep {
    /// Committed tokens behind the live state's stand before the replay: replayed ones, then those
    /// of the row. Example: after three replayed nodes, 5 is behind the row's second token.
    pub after: u32,
    /// Number of the state that the copy is written to.
    pub state: u32,
}

/// Returns the first way in which the lists of a batch do not fit states and records of `limits`.
/// `lengths` are the rows' numbers of tokens.
pub fn states_misfit(
    limits: &StateLimits,
    rows: &[RowState],
    lengths: impl Iterator<Item = u32>,
    replays: &[u32],
    keeps: &[StateKeep],
) -> Option<&'static str> {
    let StateLimits {
        states,
        records,
        nodes,
    } = *limits;
    let kept = keeps.iter().map(|keep| keep.state);
    let mut named = rows.iter().map(|row| row.state).chain(kept);
    if named.any(|state| state as usize >= states) {
        return Some("a batch names a state that does not exist");
    }
    if rows.iter().any(|row| row.records as usize >= records) {
        return Some("a batch names records that do not exist");
    }
    let verified = rows.iter().zip(lengths).filter(|(row, _)| !row.commits);
    let most = verified.map(|(_, tokens)| tokens as usize).max();
    if most.is_some_and(|tokens| tokens > nodes) {
        return Some("a row verifies more nodes than there are records: size them by all tiers");
    }
    if replays.iter().any(|node| *node as usize >= nodes) {
        return Some("a batch replays a node that has no record");
    }
    None
}
