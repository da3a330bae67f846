//! Lists of a batch that say what rows do with the states of recurrent layers.

use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_backend::{Batch, InputLimits, RowState, Span, states_misfit};
use lockstep_types::StateLimits;

use super::List;

/// Words of an element of each list, as in `states.cuh`.
const STATE_WORDS: usize = 9;
const KEEP_WORDS: usize = 2;

/// Sizes of the lists for the largest batch: words of an element, and number of elements.
pub(super) fn words(limits: &InputLimits) -> [(usize, usize); 3] {
    let rows = match limits.replays {
        0 => 0,
        _ => limits.requests,
    };
    [
        (STATE_WORDS, rows),
        (1, limits.replays),
        (KEEP_WORDS, limits.keeps()),
    ]
}

/// Makes room for a list of so many words, and calls the function that writes them.
type MakeList<'a> = dyn FnMut(List, usize, &mut dyn FnMut(&mut [u32])) + 'a;

/// Writes all lists of `batch`.
pub(super) fn fill(batch: &Batch<'_>, list: &mut MakeList<'_>) {
    let (states, replays, keeps) = (batch.states, batch.replays, batch.keeps);
    list(List::States, STATE_WORDS * states.len(), &mut |to| {
        for (to, state) in to.as_chunks_mut().0.iter_mut().zip(states) {
            *to = state_words(state);
        }
    });
    list(List::Replays, replays.len(), &mut |to| {
        to.copy_from_slice(replays);
    });
    list(List::Keeps, KEEP_WORDS * keeps.len(), &mut |to| {
        for (to, keep) in to.as_chunks_mut().0.iter_mut().zip(keeps) {
            *to = [keep.after, keep.state];
        }
    });
}

fn state_words(row: &RowState) -> [u32; STATE_WORDS] {
    let RowState {
        state,
        records,
        side,
        fresh,
        commits,
        replays,
        keeps,
    } = *row;
    let Span { start, len } = replays;
    [
        state,
        records,
        side,
        fresh.into(),
        commits.into(),
        start,
        len,
        keeps.start,
        keeps.len,
    ]
}

/// The largest numbers that a batch names: with them it can be held against the states of each
/// layer after its lists have gone to the device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Named {
    /// True if each row has a state.
    rows: bool,
    row: RowState,
    verified: u32,
    replay: Option<u32>,
}

impl Named {
    /// # Panics
    /// Panics if two rows have one state or one place of records, or if a copy is kept in a state
    /// that the batch also has for something else: blocks write them at once.
    pub(super) fn of(batch: &Batch<'_>, space: &mut Vec<u32>) -> Self {
        let states = batch.states;
        let mut most = |of: &mut dyn Iterator<Item = u32>, what: &str| {
            space.clear();
            space.extend(of);
            space.sort_unstable();
            assert!(space.is_sorted_by(|one, next| one < next), "{what}");
            space.last().copied().unwrap_or(0)
        };
        let records = &mut states.iter().map(|row| row.records);
        let records = most(records, "rows have records of their own");
        let kept = batch.keeps.iter().map(|keep| keep.state);
        let named = &mut states.iter().map(|row| row.state).chain(kept);
        let state = most(named, "rows and copies have states of their own");
        let lengths = batch.rows.iter().zip(states);
        let verified = lengths.filter(|(_, state)| !state.commits);
        let verified = verified.map(|(row, _)| row.q_len).max();
        Self {
            rows: states.len() == batch.rows.len(),
            row: RowState {
                state,
                records,
                commits: verified.is_none(),
                ..RowState::default()
            },
            verified: verified.unwrap_or(0),
            replay: batch.replays.iter().copied().max(),
        }
    }

    /// # Panics
    /// Panics if the batch has no states, or names what layers of `limits` do not have.
    pub(super) fn expect(&self, limits: &StateLimits) {
        assert!(self.rows, "each row has a state where layers are recurrent");
        let lengths = std::iter::once(self.verified);
        let misfit = states_misfit(limits, &[self.row], lengths, self.replay.as_slice(), &[]);
        assert!(misfit.is_none(), "{}", misfit.unwrap_or_default());
    }
}

/// The least limits that batches in one place were held against. A pass that is repeated asks for
/// nothing, so what its batch names is held against these when it is staged.
#[derive(Debug)]
pub(super) struct Least {
    states: AtomicUsize,
    records: AtomicUsize,
    nodes: AtomicUsize,
}

impl Default for Least {
    fn default() -> Self {
        let none = || AtomicUsize::new(usize::MAX);
        Self {
            states: none(),
            records: none(),
            nodes: none(),
        }
    }
}

impl Least {
    /// Notes limits that a batch was held against.
    pub(super) fn note(&self, limits: &StateLimits) {
        self.states.fetch_min(limits.states, Ordering::Relaxed);
        self.records.fetch_min(limits.records, Ordering::Relaxed);
        self.nodes.fetch_min(limits.nodes, Ordering::Relaxed);
    }

    /// Returns the least limits; `None` before any are noted.
    pub(super) fn limits(&self) -> Option<StateLimits> {
        let limits = StateLimits {
            states: self.states.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            nodes: self.nodes.load(Ordering::Relaxed),
        };
        (limits.states < usize::MAX).then_some(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_the_least() {
        let limits = |states, records, nodes| StateLimits {
            states,
            records,
            nodes,
        };
        let least = Least::default();
        assert_eq!(least.limits(), None);
        least.note(&limits(3, 2, 7));
        assert_eq!(least.limits(), Some(limits(3, 2, 7)));
        least.note(&limits(5, 1, 7));
        assert_eq!(least.limits(), Some(limits(3, 1, 7)));
    }
}
