//! Rules of states in a batch.

use crate::Batch;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Row, RowState, Span, StateKeep, states_misfit};
    use lockstep_types::StateLimits;

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
