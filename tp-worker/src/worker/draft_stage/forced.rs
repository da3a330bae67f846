//! Drafts that constraints force, in place of drafts that they forbid.
//!
//! They cost no pass of a drafter. Verification does not know them from others, so they may be
//! wrong: a forced text may be spelt by other tokens. Sampled drafts are left alone, since their
//! verification needs all of them.

use lockstep_backend::Backend;
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_speculation::DraftRow;

use super::DraftStage;
use crate::worker::slots::Slots;

/// Forced drafts of a step's decode rows.
#[derive(Debug)]
pub struct Forced {
    rows: Vec<ForcedRow>,
    /// Tokens of all rows.
    tokens: Vec<u32>,
    /// The chain in work.
    chain: Vec<u32>,
}

/// Forced drafts of one row.
#[derive(Debug, Clone, Copy, Default)]
struct ForcedRow {
    /// The row's forced text: start and number of its tokens in [`Forced::tokens`].
    start: usize,
    len: usize,
    /// True if nothing else is to be drafted.
    whole: bool,
    /// Most depth and nodes that the plan grants. The drafter may get less.
    steps: usize,
    most: usize,
    /// Number of the first forced node; 0 if there is none.
    first: u32,
}

impl Forced {
    /// Makes room for `requests` rows of at most `most` nodes.
    pub fn new(requests: usize, most: usize) -> Self {
        Self {
            rows: Vec::with_capacity(requests),
            tokens: Vec::with_capacity(requests * most),
            chain: Vec::with_capacity(most + 1),
        }
    }

    fn text(&self, row: usize) -> &[u32] {
        let ForcedRow { start, len, .. } = self.rows[row];
        &self.tokens[start..start + len]
    }
}

impl<B: Backend> DraftStage<B> {
    /// Returns the number of a row's first forced node; 0 if it has none.
    pub fn forced(&self, decode: usize) -> u32 {
        self.forced.rows.get(decode).map_or(0, |row| row.first)
    }

    /// Finds the text that each row's constraint forces, before anything is drafted. Only the
    /// lead of a DP rank has constraints.
    pub(super) fn find_forced(&mut self, slots: &mut Slots) {
        let forced = &mut self.forced;
        forced.rows.clear();
        forced.tokens.clear();
        for DraftRow {
            slot, steps, most, ..
        } in &self.rows
        {
            let mut row = ForcedRow {
                start: forced.tokens.len(),
                steps: *steps,
                most: *most,
                ..ForcedRow::default()
            };
            let constraint = slots.constraint(*slot);
            if let Some((constraint, output)) = constraint.filter(|_| *steps > 0) {
                forced.chain.clear();
                let depth = row.steps.min(row.most);
                row.whole = constraint.force(output, &mut forced.chain, depth);
                row.len = forced.chain.len();
                forced.tokens.extend_from_slice(&forced.chain);
            }
            forced.rows.push(row);
        }
    }

    /// Spares the drafter the rows whose drafts are all forced.
    pub(super) fn spare_forced(&mut self) {
        for (row, forced) in self.rows.iter_mut().zip(&self.forced.rows) {
            if forced.whole {
                row.steps = 0;
            }
        }
    }

    /// Makes the drafts of constrained rows follow their constraints, with the forced text that
    /// was found.
    pub(super) fn apply_forced(&mut self, slots: &mut Slots) {
        for at in 0..self.forced.rows.len() {
            let slot = self.rows[at].slot;
            if self.forced.rows[at].steps == 0
                || slots.constraint(slot).is_none()
                || self.drafts.is_sampled(at)
            {
                continue;
            }
            self.forced.rows[at].first = if self.forced.rows[at].whole {
                self.drafts.set_chain(at, self.forced.text(at));
                1
            } else if self.drafts.sampled() && self.samples(slots, slot) {
                // Whether a row's drafts are sampled must not depend on their tokens.
                0
            } else if self.rows[at].topk == 1 {
                self.guide_chain(at, slots)
            } else {
                self.guide_tree(at, slots)
            };
        }
    }

    /// Returns true if a slot's drafts would be sampled.
    fn samples(&self, slots: &Slots, slot: usize) -> bool {
        slots.get(slot).generation.sampling.temperature > 0.0
    }

    /// Cuts a chain where it breaks its constraint, and lets forced text follow. Returns the
    /// number of the first forced node.
    fn guide_chain(&mut self, at: usize, slots: &mut Slots) -> u32 {
        let ForcedRow { steps, most, .. } = self.forced.rows[at];
        let slot = self.rows[at].slot;
        let Some((constraint, output)) = slots.constraint(slot) else {
            return 0;
        };
        if self.drafts.nodes(at).is_empty() {
            // What is forced was found before, so a row without drafts takes no other walk.
            let text = self.forced.text(at);
            self.drafts.set_chain(at, text);
            return u32::from(!text.is_empty());
        }
        let chain = &mut self.forced.chain;
        chain.clear();
        chain.extend(self.drafts.nodes(at).iter().map(|node| node.token));
        let drafted = chain.len();
        let left = constraint.guide(output, chain, steps.min(most));
        if left == drafted && chain.len() == drafted {
            return 0;
        }
        self.drafts.set_chain(at, &self.forced.chain);
        if left < drafted
            && let Some(drafter) = &mut self.drafter
        {
            drafter.cut(slot, left);
        }
        match self.forced.chain.len() > left {
            true => left as u32 + 1,
            false => 0,
        }
    }

    /// Removes branches whose first token is forbidden, and adds the forced text as a branch.
    /// Forbidden tokens further down are left in: to find them takes a mask for each node.
    /// Returns the number of the first forced node.
    fn guide_tree(&mut self, at: usize, slots: &mut Slots) -> u32 {
        let slot = self.rows[at].slot;
        let Some((constraint, _)) = slots.constraint(slot) else {
            return 0;
        };
        if let Ok(mask) = constraint.allowed() {
            let forbidden = self.drafts.prune(at, |token| allows(mask, token));
            constraint.count_cut(forbidden);
        }
        let most = self.forced.rows[at].most;
        match self.forced.text(at) {
            [] => 0,
            text => self.drafts.graft(at, text, most).unwrap_or(0),
        }
    }
}
