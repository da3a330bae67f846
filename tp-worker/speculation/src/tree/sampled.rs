//! Trees whose tokens are drawn at random.

use lockstep_sampling::{DraftKey, DraftSampler};
use lockstep_types::sampling::SamplingParams;

use super::{Candidate, TreeGrower};
use crate::{Drafts, Node};

/// The parts with which a request's drafted tokens are drawn.
#[derive(Debug)]
pub struct Drawing<'a> {
    /// Draws the tokens.
    pub sampler: &'a mut DraftSampler,
    /// The target's ids of the draft's tokens; `None` if they are equal.
    pub ids: Option<&'a [u32]>,
    /// Sampling parameters of the request, of which seed and temperature matter.
    pub params: &'a SamplingParams,
    /// Number of the request's output tokens so far.
    pub position: u64,
}

impl TreeGrower {
    /// Generates the next level as [`Self::level`] does, but draws the children of a node
    /// without replacement. Adds them to a row of `drafts` with the distributions that they
    /// were drawn from.
    ///
    /// Recursive rejection holds only for children that are all kept, whatever was drawn. So
    /// each level gets an even share of the tree's nodes, and each node of the frontier gets a
    /// number of children in it. These numbers are in proportion to the probability of the
    /// nodes' paths (D'Hondt), and are set before any node of the level is drawn. The choice of
    /// expanded nodes may depend on all that was drawn before.
    pub fn sample_level(
        &mut self,
        logits: &[f32],
        drawing: &mut Drawing<'_>,
        drafts: &mut Drafts,
        row: usize,
    ) {
        self.give_seats();
        self.grow(logits, |grower, place, parent, logits| {
            let seats = grower.seats[place];
            grower.draw(parent, logits, seats, drawing, (&mut *drafts, row));
        });
    }

    /// Sets the number of children of each node of the frontier.
    fn give_seats(&mut self) {
        let (frontier, topk) = (self.frontier().len().max(1), self.shape.topk);
        let mut seats = std::mem::take(&mut self.seats);
        seats.clear();
        seats.resize(frontier, 0);
        let left = self.shape.most.saturating_sub(self.candidates.len());
        let levels = self.shape.steps.saturating_sub(self.levels).max(1);
        for _ in 0..left.div_ceil(levels).min(frontier * topk) {
            let claim = |place: usize| {
                let node = match self.levels {
                    0 => 0,
                    _ => (self.frontier + place) as u32 + 1,
                };
                self.score(node) - ((seats[place] + 1) as f32).ln()
            };
            let open = (0..frontier).filter(|place| seats[*place] < topk);
            // The first one wins among equals.
            let best = open.rev().max_by(|a, b| claim(*a).total_cmp(&claim(*b)));
            if let Some(place) = best {
                seats[place] += 1;
            }
        }
        self.seats = seats;
    }

    /// Draws `count` children of a node. Logits that are not finite give no children.
    fn draw(
        &mut self,
        parent: u32,
        logits: &[f32],
        count: usize,
        drawing: &mut Drawing<'_>,
        (drafts, row): (&mut Drafts, usize),
    ) {
        let params = drawing.params;
        let set = drawing.sampler.set(logits, drawing.ids, params.temperature);
        if set.is_err() {
            return;
        }
        let (score, mut left) = (self.score(parent), 1.0);
        for _ in 0..count {
            let node = self.candidates.len() as u32 + 1;
            let key = DraftKey {
                seed: params.seed,
                position: drawing.position + self.levels as u64,
                node,
            };
            let Some(token) = drawing.sampler.draw(key) else {
                return;
            };
            let law = drawing.sampler.law();
            drafts.distribution(row).copy_from_slice(law);
            // All candidates are drafted, so they have the numbers of their nodes.
            let before = parent
                .checked_sub(1)
                .map_or(0, |at| self.expanded[at as usize].candidate + 1);
            drafts.push(
                row,
                Node {
                    token,
                    parent: before,
                },
            );
            // The token's probability before other tokens were excluded.
            let p = left * law[token as usize];
            left -= p;
            self.candidates.push(Candidate {
                token,
                parent,
                score: score + p.max(f32::MIN_POSITIVE).ln(),
            });
            drawing.sampler.exclude(token);
        }
    }
}
