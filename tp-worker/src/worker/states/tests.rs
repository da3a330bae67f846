//! Tests of what rows do with states, and of plans that contradict each other.

use super::*;

const LIMITS: StateLimits = StateLimits {
    states: 6,
    records: 3,
    nodes: 4,
};

fn open(slot: u32, cached_len: u32, state: u32, restore: Option<u32>) -> SlotOpen {
    SlotOpen {
        cached_len,
        state: Some(state),
        restore,
        ..SlotOpen::new(slot, (0..40).collect())
    }
}

fn keep(position: u32, state: u32) -> StateKeep {
    StateKeep { position, state }
}

fn keeping(slot: u32, keeps: &[StateKeep]) -> SlotExtend {
    SlotExtend {
        slot,
        keeps: keeps.to_vec(),
        ..SlotExtend::default()
    }
}

/// A row of `q_len` tokens at `start`.
fn task(slot: usize, start: u32, q_len: u32) -> RowTask {
    RowTask {
        slot,
        start,
        q_len,
        sample: true,
        decodes: q_len == 1,
        drafts: None,
        draft_depth: 0,
        forced: 0,
        output: None,
        choice: 0,
    }
}

/// Runs a step of one row with that many drafts, of which those of `path` are accepted. Returns
/// the row, the nodes that it replays and the copies that it keeps.
fn step(
    states: &mut States,
    number: u64,
    task: RowTask,
    (drafts, path): (u32, &[u32]),
    keeps: &[StateKeep],
) -> (RowState, Vec<u32>, Vec<Kept>) {
    states.begin();
    states
        .extend(number, &keeping(task.slot as u32, keeps))
        .unwrap();
    states.lay_out(&[task], [task.q_len + drafts].into_iter());
    let batch = states.batch();
    let row = batch.rows[0];
    let found = (
        row,
        row.replays.of(batch.replays).to_vec(),
        row.keeps.of(batch.keeps).to_vec(),
    );
    let outcome = Outcome { tokens: &[], path };
    states.commit(&[task], [outcome].into_iter());
    found
}

/// A prompt, a verification, one more, and a row without drafts. Copies are asked for until they
/// are passed.
#[test]
fn accepted_nodes_are_replayed_by_the_next_row() {
    let mut states = States::new(LIMITS);
    states.open(&open(1, 0, 5, None)).unwrap();
    assert_eq!(states.moves(), []);
    let kept = |after, state| Kept { after, state };
    let asked = [keep(4, 0), keep(16, 2)];

    let (row, replays, keeps) = step(&mut states, 1, task(1, 0, 7), (0, &[]), &asked);
    assert_eq!((row.state, row.records), (5, 1));
    assert!(row.fresh && row.commits && replays.is_empty());
    assert_eq!(keeps, [kept(4, 0)]);

    let (row, replays, keeps) = step(&mut states, 2, task(1, 7, 1), (3, &[2, 3]), &[keep(9, 2)]);
    assert!(!row.fresh && !row.commits && replays.is_empty() && keeps.is_empty());
    let side = row.side;

    // The state stands at 7 still, and 10 tokens are committed.
    let asked = [keep(7, 0), keep(9, 2), keep(11, 3)];
    let (row, replays, keeps) = step(&mut states, 3, task(1, 10, 1), (3, &[]), &asked);
    assert_eq!((row.side, row.commits), (1 - side, false));
    assert_eq!(replays, [0, 2, 3]);
    assert_eq!(keeps, [kept(2, 2)]);

    // A row that drafts nothing reads the other half too, and takes in its own token.
    let asked = [keep(11, 3), keep(12, 4)];
    let (row, replays, keeps) = step(&mut states, 4, task(1, 11, 1), (0, &[]), &asked);
    assert_eq!((row.side, row.commits), (side, true));
    assert_eq!(replays, [0]);
    assert_eq!(keeps, [kept(1, 3), kept(2, 4)]);

    let (row, replays, _) = step(&mut states, 5, task(1, 12, 1), (1, &[1]), &[]);
    assert!(replays.is_empty() && !row.commits);
}

/// Copies are made in turn, so one may read what the next overwrites.
#[test]
fn states_are_restored_in_the_order_of_the_opens() {
    let mut states = States::new(LIMITS);
    states.begin();
    states.open(&open(0, 16, 1, Some(0))).unwrap();
    states.open(&open(1, 16, 0, Some(2))).unwrap();
    // A state that goes over to the request whole.
    states.open(&open(2, 16, 3, Some(3))).unwrap();
    assert_eq!(states.moves(), [(0, 1), (2, 0)]);
    states.close(1);
    states.begin();
    assert_eq!(states.moves(), []);
    states.open(&open(1, 0, 0, None)).unwrap();
}

#[test]
fn plans_that_contradict_each_other_are_refused() {
    let running = || {
        let mut states = States::new(LIMITS);
        states.open(&open(0, 0, 4, None)).unwrap();
        states
    };
    let unknown = |state| PlanError::UnknownState {
        slot: 1,
        state,
        states: 6,
    };
    let owned = PlanError::StateOwned {
        slot: 1,
        state: 4,
        owner: 0,
    };
    let restore = |cached_len| PlanError::StateRestore {
        slot: 1,
        cached_len,
    };
    let missing = |wanted| PlanError::StateMissing { slot: 1, wanted };
    let without = SlotOpen {
        state: None,
        ..open(1, 0, 0, None)
    };
    for (open, expected) in [
        (open(1, 0, 6, None), unknown(6)),
        (open(1, 16, 1, Some(9)), unknown(9)),
        (open(1, 0, 4, None), owned.clone()),
        (open(1, 16, 1, Some(4)), owned.clone()),
        (open(1, 16, 1, None), restore(16)),
        (open(1, 0, 1, Some(2)), restore(0)),
        (without, missing(true)),
    ] {
        assert_eq!(running().open(&open), Err(expected));
    }
    let twice = PlanError::StateKeptTwice { slot: 1, state: 2 };
    let order = PlanError::KeepOrder { slot: 1 };
    for (keeps, expected) in [
        ([keep(1, 0), keep(2, 6)], unknown(6)),
        ([keep(1, 0), keep(2, 4)], owned),
        ([keep(1, 2), keep(2, 2)], twice),
        ([keep(2, 0), keep(1, 1)], order.clone()),
        ([keep(2, 0), keep(2, 1)], order),
    ] {
        assert_eq!(running().extend(1, &keeping(1, &keeps)), Err(expected));
    }
    // The next step may write the same copy again.
    let mut states = running();
    for step in [1, 2] {
        states.extend(step, &keeping(1, &[keep(1, 2)])).unwrap();
    }
    // A model without recurrent layers has none of it.
    let mut none = States::new(StateLimits {
        states: 0,
        ..LIMITS
    });
    assert_eq!(none.open(&open(1, 0, 0, None)), Err(missing(false)));
    let keeps = [keep(1, 0)];
    assert_eq!(none.extend(1, &keeping(1, &keeps)), Err(missing(false)));
    none.open(&SlotOpen::new(1, vec![1, 2])).unwrap();
    none.lay_out(&[task(1, 0, 2)], [2].into_iter());
    assert!(none.batch().rows.is_empty());
}
