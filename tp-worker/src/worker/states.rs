//! Recurrent states of the slots: where each live state stands, which accepted drafts it lacks,
//! and what a step's rows do with it.

use lockstep_backend::{RowState, Span, StateKeep as Kept};
use lockstep_types::{
    StateLimits,
    step::{SlotExtend, SlotOpen, StateKeep},
};

use super::{PlanError, outcome::Outcome, slots::RowTask};

mod probe;

pub use probe::{SeenState, StateProbe};

/// The live state of one slot.
#[derive(Debug, Default)]
struct LiveState {
    /// Its number; `None` if the slot is closed, or the model has no recurrent layers.
    state: Option<u32>,
    /// Number of tokens that it has taken in.
    position: u32,
    /// True if nothing has been written to it yet, and the text begins with the first row.
    fresh: bool,
    /// Half of the slot's records that its last verification wrote.
    side: u32,
    /// Nodes of that verification which the state lacks: the row's own token and the accepted
    /// drafts. The next row replays them.
    accepted: Vec<u32>,
}

/// Live states of all slots, and the part of the step's batch that is about states.
///
/// A row without drafts moves its state over the accepted nodes of the last verification, and
/// then over its own tokens. A row with drafts moves it over the former alone.
#[derive(Debug)]
pub struct States {
    limits: StateLimits,
    slots: Vec<LiveState>,
    /// Slot of each live state.
    owners: Vec<Option<u32>>,
    /// The last step that wrote a copy to each state.
    kept_in: Vec<u64>,
    /// Copies to make before the pass: from, to.
    moves: Vec<(u32, u32)>,
    /// Copies that the plan asks for, and each row's part of them.
    asked: Vec<StateKeep>,
    asked_by: Vec<Span>,
    rows: Vec<RowState>,
    replays: Vec<u32>,
    keeps: Vec<Kept>,
}

/// The part of a batch that is about states; empty for a model without recurrent layers.
#[derive(Debug, Default)]
pub struct BatchStates<'a> {
    pub rows: &'a [RowState],
    pub replays: &'a [u32],
    pub keeps: &'a [Kept],
}

impl States {
    /// Makes the states of closed slots; of none if `limits` has no state.
    pub fn new(limits: StateLimits) -> Self {
        let slots = if limits.states == 0 {
            0
        } else {
            limits.records
        };
        let slot = |_| LiveState {
            accepted: Vec::with_capacity(limits.nodes),
            ..LiveState::default()
        };
        Self {
            slots: (0..slots).map(slot).collect(),
            owners: vec![None; limits.states],
            kept_in: vec![0; limits.states],
            moves: Vec::with_capacity(slots),
            asked: Vec::new(),
            asked_by: Vec::with_capacity(slots),
            rows: Vec::with_capacity(slots),
            replays: Vec::with_capacity(slots * limits.nodes),
            keeps: Vec::new(),
            limits,
        }
    }

    /// Begins a step's plan.
    pub fn begin(&mut self) {
        self.moves.clear();
        self.asked.clear();
        self.asked_by.clear();
    }

    /// Takes the live state from a slot that closes.
    pub fn close(&mut self, slot: u32) {
        if let Some(live) = self.slots.get_mut(slot as usize)
            && let Some(state) = live.state.take()
        {
            self.owners[state as usize] = None;
        }
    }

    /// Gives a live state to an open slot.
    ///
    /// # Errors
    /// [`PlanError`] if the states do not fit the model or belong to another slot.
    pub fn open(&mut self, open: &SlotOpen) -> Result<(), PlanError> {
        let slot = open.slot;
        let (state, restore) = match (self.slots.is_empty(), open.state, open.restore) {
            (true, None, None) => return Ok(()),
            (false, Some(state), restore) => (state, restore),
            (none, ..) => {
                return Err(PlanError::StateMissing {
                    slot,
                    wanted: !none,
                });
            }
        };
        if restore.is_some() != (open.cached_len > 0) {
            let cached_len = open.cached_len;
            return Err(PlanError::StateRestore { slot, cached_len });
        }
        for named in [Some(state), restore].into_iter().flatten() {
            self.check_unowned(slot, named)?;
        }
        self.owners[state as usize] = Some(slot);
        let moved = restore.filter(|from| *from != state);
        self.moves.extend(moved.map(|from| (from, state)));
        let live = &mut self.slots[slot as usize];
        live.state = Some(state);
        live.position = open.cached_len;
        live.fresh = restore.is_none();
        live.accepted.clear();
        Ok(())
    }

    /// Takes in the copies that a row keeps. Rows come in the plan's order, after all opens.
    ///
    /// # Errors
    /// [`PlanError`] if a copy does not fit the model, or would be written to a live state or to
    /// the state of another copy.
    pub fn extend(&mut self, step: u64, extend: &SlotExtend) -> Result<(), PlanError> {
        let (slot, keeps) = (extend.slot, &extend.keeps);
        if !keeps.is_sorted_by(|one, next| one.position < next.position) {
            return Err(PlanError::KeepOrder { slot });
        }
        for StateKeep { state, .. } in keeps {
            if self.slots.is_empty() {
                return Err(PlanError::StateMissing {
                    slot,
                    wanted: false,
                });
            }
            self.check_unowned(slot, *state)?;
            if std::mem::replace(&mut self.kept_in[*state as usize], step) == step {
                return Err(PlanError::StateKeptTwice {
                    slot,
                    state: *state,
                });
            }
        }
        let span = Span {
            start: self.asked.len() as u32,
            len: keeps.len() as u32,
        };
        self.asked.extend_from_slice(keeps);
        self.asked_by.push(span);
        Ok(())
    }

    /// Returns the copies of cached states to make before the pass, in turn.
    pub fn moves(&self) -> &[(u32, u32)] {
        &self.moves
    }

    /// Lays out the rows of `tasks`, whose lengths with their drafts are `lengths`.
    pub fn lay_out(&mut self, tasks: &[RowTask], lengths: impl Iterator<Item = u32>) {
        self.rows.clear();
        self.replays.clear();
        self.keeps.clear();
        if self.slots.is_empty() {
            return;
        }
        for (at, (task, length)) in tasks.iter().zip(lengths).enumerate() {
            let live = &self.slots[task.slot];
            let commits = length == task.q_len;
            let passed = if commits {
                task.start + task.q_len
            } else {
                task.start
            };
            debug_assert_eq!(live.position + live.accepted.len() as u32, task.start);
            let replays = Span {
                start: self.replays.len() as u32,
                len: live.accepted.len() as u32,
            };
            self.replays.extend_from_slice(&live.accepted);
            let start = self.keeps.len();
            let reached = live.position + 1..=passed;
            let asked = self.asked_by[at].of(&self.asked);
            let keeps = asked.iter().filter(|keep| reached.contains(&keep.position));
            self.keeps.extend(keeps.map(|keep| Kept {
                after: keep.position - live.position,
                state: keep.state,
            }));
            self.rows.push(RowState {
                // An open slot of a model with recurrent layers has one.
                state: live.state.unwrap_or_default(),
                records: task.slot as u32,
                side: 1 - live.side,
                fresh: live.fresh,
                commits,
                replays,
                keeps: Span {
                    start: start as u32,
                    len: (self.keeps.len() - start) as u32,
                },
            });
        }
    }

    /// Returns the batch's part that was laid out last.
    pub fn batch(&self) -> BatchStates<'_> {
        BatchStates {
            rows: &self.rows,
            replays: &self.replays,
            keeps: &self.keeps,
        }
    }

    /// Takes in the outcomes of the step's rows.
    pub fn commit<'a>(&mut self, tasks: &[RowTask], outcomes: impl Iterator<Item = Outcome<'a>>) {
        for ((task, row), outcome) in tasks.iter().zip(&self.rows).zip(outcomes) {
            let live = &mut self.slots[task.slot];
            live.accepted.clear();
            live.fresh = false;
            live.position = task.start;
            if row.commits {
                live.position += task.q_len;
            } else {
                live.accepted.push(0);
                live.accepted.extend_from_slice(outcome.path);
                live.side = row.side;
            }
        }
    }

    /// Checks that a state exists, and is no live state of a slot.
    fn check_unowned(&self, slot: u32, state: u32) -> Result<(), PlanError> {
        let states = self.limits.states;
        match self.owners.get(state as usize) {
            None => Err(PlanError::UnknownState {
                slot,
                state,
                states,
            }),
            Some(Some(owner)) => Err(PlanError::StateOwned {
                slot,
                state,
                owner: *owner,
            }),
            Some(None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
