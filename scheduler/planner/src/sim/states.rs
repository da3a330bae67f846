//! The simulated recurrent states: each holds the hash of the text that it has taken in.

use lockstep_types::step::{PlanPart, SlotOpen, StateKeep};

use super::{SimModel, slot::SimSlot};

/// States of a DP rank, as far as they are written; none for a model without recurrent layers.
#[derive(Debug)]
pub(super) struct SimStates(Vec<Option<u64>>);

impl SimStates {
    pub fn new(states: u32) -> Self {
        Self(vec![None; states as usize])
    }

    pub fn forget(&mut self) {
        self.0.fill(None);
    }

    /// Copies the cached state of a request that gets a slot into its live one, and checks both.
    /// `slots` are the open ones.
    pub fn open(&mut self, open: &SlotOpen, slots: &[Option<SimSlot>]) -> Result<(), String> {
        let slot = open.slot;
        if self.0.is_empty() {
            return match (open.state, open.restore) {
                (None, None) => Ok(()),
                _ => Err(format!("slot {slot} has a state, and the model has none")),
            };
        }
        let live = open.state.ok_or(format!("slot {slot} has no state"))?;
        let lives = |state| slots.iter().flatten().any(|slot| slot.state == Some(state));
        if lives(live) {
            return Err(format!("state {live} of slot {slot} is another slot's"));
        }
        let begins = match open.restore {
            Some(restore) if lives(restore) => {
                return Err(format!("slot {slot} restores live state {restore}"));
            }
            Some(restore) => *self.at(restore)?,
            None if open.cached_len > 0 => {
                return Err(format!("slot {slot} restores no state"));
            }
            None => Some(SimModel::EMPTY),
        };
        let cached = open.token_ids.iter().take(open.cached_len as usize);
        let text = cached.fold(SimModel::EMPTY, |hash, token| {
            SimModel::absorb(hash, *token)
        });
        if begins != Some(text) {
            return Err(format!(
                "slot {slot} restores state {:?}, which is not of its {} cached tokens",
                open.restore, open.cached_len
            ));
        }
        *self.at(live)? = begins;
        Ok(())
    }

    /// Moves the live state of a slot to `to`, and writes the copies that are passed on the way.
    pub fn pass(&mut self, slot: &mut SimSlot, to: u32, keeps: &[StateKeep]) -> Result<(), String> {
        let Some(live) = slot.state else {
            return match keeps {
                [] => Ok(()),
                _ => Err("a slot without a state keeps some".into()),
            };
        };
        let from = std::mem::replace(&mut slot.state_position, to);
        if *self.at(live)? != Some(slot.context(from)) {
            return Err(format!("state {live} is not of its slot's {from} tokens"));
        }
        *self.at(live)? = Some(slot.context(to));
        if !keeps.is_sorted_by_key(|keep| keep.position) {
            return Err("copies of a state not by ascending positions".into());
        }
        for StateKeep { position, state } in keeps {
            if (from + 1..=to).contains(position) {
                *self.at(*state)? = Some(slot.context(*position));
            }
        }
        Ok(())
    }

    /// Checks that the copies of a step have states of their own.
    pub fn check_keeps(&self, part: &PlanPart, slots: &[Option<SimSlot>]) -> Result<(), String> {
        let live = slots.iter().flatten().filter_map(|slot| slot.state);
        let keeps = part.extends.iter().flat_map(|row| &row.keeps);
        let mut all: Vec<u32> = live.chain(keeps.map(|keep| keep.state)).collect();
        all.sort_unstable();
        match all.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("state {} is written twice", pair[0])),
            None => Ok(()),
        }
    }

    fn at(&mut self, state: u32) -> Result<&mut Option<u64>, String> {
        let states = self.0.len();
        let found = self.0.get_mut(state as usize);
        found.ok_or_else(|| format!("state {state} is none of {states}"))
    }
}
