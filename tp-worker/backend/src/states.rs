//! States of recurrent layers in a batch: which state a row goes on from, and what becomes of it.

use lockstep_types::StateLimits;

use crate::Batch;

/// The state behind one row of a batch.
///
/// A row goes on from its live state in three steps: the records of its last pass that were
/// accepted are replayed, with the very roundings of plain tokens; then the row's tokens follow.
/// Where they are committed, they go into the live state as well. Where they are to be verified,
/// the live state stays as the replay left it, and each token leaves a record.
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
    /// The accepted nodes of the request's last pass among [`Batch::replays`].
    pub replays: Span,
    /// The copies that are kept on the way, among [`Batch::keeps`].
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
    fn within(self, len: usize) -> bool {
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

/// Returns the first rule of states that `batch` breaks.
pub(crate) fn broken_rule(batch: &Batch<'_>) -> Option<&'static str> {
    if batch.states.is_empty() {
        let none = batch.replays.is_empty() && batch.keeps.is_empty();
        return (!none).then_some("replays and kept copies belong to rows with states");
    }
    if batch.states.len() != batch.rows.len() {
        return Some("each row has a state, or none has");
    }
    for (row, state) in batch.rows.iter().zip(batch.states) {
        if state.side > 1 {
            return Some("records have the sides 0 and 1");
        }
        if state.commits && row.mask.is_some() {
            return Some("a row whose tokens are committed has no mask");
        }
        let (replays, keeps) = (state.replays, state.keeps);
        if !replays.within(batch.replays.len()) || !keeps.within(batch.keeps.len()) {
            return Some("a row's replays and kept copies lie among those of the batch");
        }
        if state.fresh && replays.len > 0 {
            return Some("a text that begins has nothing to replay");
        }
        let replays = replays.of(batch.replays);
        if !replays.is_sorted_by(|one, next| one < next) {
            return Some("replayed nodes ascend");
        }
        let own = if state.commits { row.q_len } else { 0 };
        let keeps = keeps.of(batch.keeps);
        let last = keeps.last().map_or(0, |keep| keep.after);
        let ascend = keeps.is_sorted_by(|one, next| one.after < next.after);
        if !ascend || last as usize > replays.len() + own as usize {
            return Some("copies are kept of committed positions of the row, in ascending order");
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;

    const ROW: Row = Row {
        start: 0,
        q_len: 2,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    const STATE: RowState = RowState {
        state: 1,
        records: 1,
        side: 0,
        fresh: false,
        commits: true,
        replays: Span { start: 0, len: 2 },
        keeps: Span { start: 0, len: 2 },
    };
    const KEEPS: [StateKeep; 2] = [
        StateKeep { after: 0, state: 2 },
        StateKeep { after: 4, state: 3 },
    ];

    fn broken(row: Row, state: RowState, replays: &[u32], keeps: &[StateKeep]) -> bool {
        let batch = Batch {
            rows: &[row],
            states: &[state],
            replays,
            keeps,
            ..Batch::default()
        };
        broken_rule(&batch).is_some()
    }

    #[test]
    fn rows_that_contradict_themselves_are_found() {
        let masked = Row {
            mask: Some(0),
            ..ROW
        };
        let verifies = RowState {
            commits: false,
            ..STATE
        };
        let long = Span { start: 1, len: 2 };
        assert!(!broken(ROW, STATE, &[0, 1], &KEEPS));
        assert!(broken(masked, STATE, &[0, 1], &KEEPS));
        // Behind two replayed nodes there is no committed token of a row that verifies.
        assert!(broken(ROW, verifies, &[0, 1], &KEEPS));
        assert!(!broken(
            masked,
            RowState {
                keeps: Span::default(),
                ..verifies
            },
            &[0, 1],
            &[]
        ));
        for state in [
            RowState { side: 2, ..STATE },
            RowState {
                fresh: true,
                ..STATE
            },
            RowState {
                replays: long,
                ..STATE
            },
            RowState {
                keeps: long,
                ..STATE
            },
        ] {
            assert!(broken(ROW, state, &[0, 1], &KEEPS), "{state:?}");
        }
        assert!(broken(ROW, STATE, &[1, 0], &KEEPS));
        assert!(broken(ROW, STATE, &[0, 1], &[KEEPS[1], KEEPS[0]]));
        let some = [STATE];
        let uneven = Batch {
            rows: &[ROW, ROW],
            states: &some,
            ..Batch::default()
        };
        let without = Batch {
            replays: &[0],
            ..Batch::default()
        };
        assert!(broken_rule(&uneven).is_some() && broken_rule(&without).is_some());
    }

    #[test]
    fn batches_are_held_against_the_numbers_of_states_and_records() {
        let limits = StateLimits {
            states: 4,
            records: 2,
            nodes: 2,
        };
        let verifies = RowState {
            commits: false,
            ..STATE
        };
        let misfit = |state: RowState, length: u32, replays: &[u32], keeps: &[StateKeep]| {
            states_misfit(&limits, &[state], std::iter::once(length), replays, keeps).is_some()
        };
        assert!(!misfit(STATE, 9, &[0, 1], &KEEPS));
        assert!(!misfit(verifies, 2, &[], &[]) && misfit(verifies, 3, &[], &[]));
        assert!(misfit(RowState { state: 4, ..STATE }, 1, &[], &[]));
        assert!(misfit(
            RowState {
                records: 2,
                ..STATE
            },
            1,
            &[],
            &[]
        ));
        assert!(misfit(STATE, 1, &[2], &[]));
        assert!(misfit(STATE, 1, &[], &[StateKeep { after: 0, state: 4 }]));
    }
}
