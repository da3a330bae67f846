//! Dynamic trees of drafts: choosing the nodes to draft from, and the nodes to keep.

mod paths;
mod sampled;

use lockstep_sampling::log_mass;

use crate::{DraftRow, Drafts, Node};

pub use paths::{push_depths, push_masks};
pub use sampled::Drawing;

/// Grows one request's tree as EAGLE-2 does (Li et al., arXiv:2406.16858).
///
/// The `topk` best tokens after the root are level 1. Each further level has the `topk` best
/// tokens after each of the `topk` best nodes of the level before. A node is better if the sum
/// of log-probabilities on its path is higher. Of the nodes of all levels the `most` best are
/// kept. Among equals the node generated earlier is better, and after one node the lower token.
/// If a node's logits are not finite, its children are the first tokens, each with probability
/// zero. So a tree always has as many nodes as its shape says.
///
/// A device grows the same trees from the same logits (`lockstep_backend::DeviceTreeDrafter`).
/// Scores are sums of values of [`log_mass`], and have the same bits there.
///
/// ```text
/// grower.begin(shape);
/// grower.level(logits after the root, map);
/// while !grower.frontier().is_empty() {
///     run the draft model over grower.expanded(), masked by grower.push_mask;
///     grower.level(logits of grower.frontier(), map);
/// }
/// grower.finish(drafts, row);
/// ```
///
/// If tokens are drawn, [`Self::sample_level`] takes the place of [`Self::level`] and of
/// [`Self::finish`].
///
/// A masked row sees all cached positions, so the nodes expanded on earlier levels can't be
/// cached: every level runs all of [`Self::expanded`] anew. After the first tree of a shape
/// nothing is allocated.
#[derive(Debug, Default)]
pub struct TreeGrower {
    shape: TreeShape,
    /// Number of levels that have been generated.
    levels: usize,
    candidates: Vec<Candidate>,
    expanded: Vec<Expanded>,
    /// Start of the frontier in `expanded`.
    frontier: usize,
    /// Indices of candidates, while a selection is made.
    order: Vec<u32>,
    /// The best tokens and logits of one node, in order.
    best: Vec<(u32, f32)>,
    /// Number of children of each node of the frontier, if tokens are drawn.
    seats: Vec<usize>,
}

/// The limits of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeShape {
    /// Number of levels.
    pub steps: usize,
    /// Number of nodes expanded per level, and of children of each.
    pub topk: usize,
    /// Number of nodes kept, the root not counted.
    pub most: usize,
}

/// A node that the draft model runs over, to generate its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// The token, in the target's numbers.
    pub token: u32,
    /// Number of its parent: 0 for the root, `n` for the `n`-th of [`TreeGrower::expanded`],
    /// from 1. The parent always comes earlier.
    pub parent: u32,
    /// Number of steps from the root, at least 1. The node's rotary position is the root's plus
    /// this.
    pub depth: u32,
    /// Index in the grower's candidates.
    candidate: u32,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    /// Number of its parent, as [`Expanded::parent`].
    parent: u32,
    /// Sum of log-probabilities from the root on. Never NaN.
    score: f32,
}

impl TreeShape {
    /// Returns the shape that a row's steps, branches, nodes and room allow. The target's
    /// verification writes the root and all kept nodes.
    pub fn of(row: &DraftRow) -> Self {
        let most = row.most.min(row.room.saturating_sub(1));
        Self {
            steps: row.steps.min(most),
            topk: row.topk,
            most,
        }
    }

    /// Returns the shape of [`Self::of`] for a drafter that itself writes [`Self::expanded`]
    /// nodes after `own` positions. `own` is 1 if the drafter runs over the root token too, as
    /// draft models do. It is 0 if the root is part of the last cached pair, as with EAGLE's
    /// heads. If the end of the context leaves too little room, the tree becomes narrow before
    /// it becomes shallow.
    pub fn fit(row: &DraftRow, own: usize) -> Self {
        let Self { steps, topk, most } = Self::of(row);
        let cells = row.room.saturating_sub(own);
        let topk = match steps {
            0 | 1 => topk,
            _ => topk.min(cells / (steps - 1)),
        };
        Self { steps, topk, most }
    }

    /// Returns the number of nodes of a tree whose rows of logits have `vocab` tokens.
    pub fn nodes(self, vocab: usize) -> usize {
        let (each, mut nodes, mut level) = (self.topk.min(vocab), 0usize, 1);
        for _ in 0..self.steps {
            nodes = nodes.saturating_add(level * each);
            level = self.topk.min(level * each);
        }
        nodes.min(self.most)
    }

    /// Returns the most nodes that are ever expanded: the drafter's cells.
    pub fn expanded(self) -> usize {
        self.steps.saturating_sub(1) * self.topk
    }
}

impl TreeGrower {
    /// Makes a grower that allocates nothing for trees up to `shape`.
    pub fn new(shape: TreeShape) -> Self {
        let candidates = shape.topk * (1 + shape.expanded());
        Self {
            candidates: Vec::with_capacity(candidates),
            expanded: Vec::with_capacity(shape.expanded()),
            order: Vec::with_capacity(candidates),
            best: Vec::with_capacity(shape.topk + 1),
            ..Self::default()
        }
    }

    /// Begins a tree.
    pub fn begin(&mut self, shape: TreeShape) {
        self.shape = shape;
        self.levels = 0;
        self.candidates.clear();
        self.expanded.clear();
        self.frontier = 0;
    }

    /// Generates the next level. `logits` are one row of the draft vocabulary for every node of
    /// the frontier, or at first the root's row. `map` returns the target's number of a draft
    /// token.
    pub fn level(&mut self, logits: &[f32], map: &dyn Fn(u32) -> u32) {
        self.grow(logits, |grower, _, parent, logits| {
            let score = grower.score(parent);
            grower.branch(parent, score, logits, map);
        });
    }

    /// Returns the nodes whose logits [`Self::level`] needs next: the last of
    /// [`Self::expanded`]. Empty once the tree is deep enough.
    pub fn frontier(&self) -> &[Expanded] {
        &self.expanded[self.frontier..]
    }

    /// Returns all nodes expanded so far, level by level, the frontier included.
    pub fn expanded(&self) -> &[Expanded] {
        &self.expanded
    }

    /// Appends the mask of a pass over [`Self::expanded`] to `masks`, in the form of
    /// [`lockstep_backend::Batch::masks`]. A node sees its ancestors and itself.
    pub fn push_mask(&self, masks: &mut Vec<u64>) {
        let parents = self.expanded.iter().map(|node| node.parent.checked_sub(1));
        paths::push_closure(self.expanded.len(), parents, masks);
    }

    /// Adds the best nodes to a row of `drafts` that has no nodes yet.
    pub fn finish(&mut self, drafts: &mut Drafts, row: usize) {
        self.select(0, self.shape.most);
        // A parent is generated before its children and is no worse. So the parent of a kept
        // node is kept, and stays in front.
        self.order.sort_unstable();
        for at in 0..self.order.len() {
            let Candidate { token, parent, .. } = self.candidates[self.order[at] as usize];
            let parent = match parent.checked_sub(1) {
                None => 0,
                Some(expanded) => {
                    let candidate = self.expanded[expanded as usize].candidate;
                    self.order[..at].partition_point(|kept| *kept < candidate) as u32 + 1
                }
            };
            drafts.push(row, Node { token, parent });
        }
    }

    /// Generates the next level. `branch` is called for each node of the frontier with its
    /// place there, its number as in [`Candidate::parent`], and its logits.
    fn grow(&mut self, logits: &[f32], mut branch: impl FnMut(&mut Self, usize, u32, &[f32])) {
        if self.levels == self.shape.steps || logits.is_empty() {
            return;
        }
        let generated = self.candidates.len();
        if self.levels == 0 {
            branch(self, 0, 0, logits);
        } else {
            let (first, rows) = (self.frontier as u32 + 1, self.frontier().len().max(1));
            let logits = logits.chunks_exact(logits.len() / rows);
            for ((place, node), logits) in (first..).enumerate().zip(logits) {
                branch(self, place, node, logits);
            }
        }
        self.levels += 1;
        self.frontier = self.expanded.len();
        if self.levels < self.shape.steps {
            self.expand(generated);
        }
    }

    /// Returns the score of a node by its number as in [`Candidate::parent`].
    fn score(&self, parent: u32) -> f32 {
        parent.checked_sub(1).map_or(0.0, |expanded| {
            let candidate = self.expanded[expanded as usize].candidate;
            self.candidates[candidate as usize].score
        })
    }

    /// Adds the `topk` best tokens after a node as candidates.
    fn branch(&mut self, parent: u32, score: f32, logits: &[f32], map: &dyn Fn(u32) -> u32) {
        let (max, log_sum) = match log_mass(logits) {
            Ok(found) => {
                most_likely(logits, self.shape.topk, &mut self.best);
                found
            }
            Err(_) => {
                let first = 0..self.shape.topk.min(logits.len()) as u32;
                self.best.clear();
                self.best
                    .extend(first.map(|token| (token, f32::NEG_INFINITY)));
                (0.0, 0.0)
            }
        };
        let candidates = self.best.iter().map(|(token, logit)| Candidate {
            token: map(*token),
            parent,
            score: score + (logit - max - log_sum).min(0.0),
        });
        self.candidates.extend(candidates);
    }

    /// Makes the best candidates from number `first` on the frontier.
    fn expand(&mut self, first: usize) {
        self.select(first, self.shape.topk);
        for candidate in &self.order {
            let Candidate { token, parent, .. } = self.candidates[*candidate as usize];
            let depth = match parent.checked_sub(1) {
                None => 1,
                Some(expanded) => self.expanded[expanded as usize].depth + 1,
            };
            self.expanded.push(Expanded {
                token,
                parent,
                depth,
                candidate: *candidate,
            });
        }
    }

    /// Sorts the candidates from number `first` on, and keeps the `count` best in `order`, best
    /// first.
    fn select(&mut self, first: usize, count: usize) {
        let candidates = &self.candidates;
        let score = |candidate: &u32| candidates[*candidate as usize].score;
        self.order.clear();
        self.order.extend(first as u32..candidates.len() as u32);
        self.order
            .sort_unstable_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
        self.order.truncate(count);
    }
}

/// Sets `best` to the `count` largest of `logits`, in order, the lower index first among
/// equals. It takes one pass: most logits are only compared with the smallest kept so far.
fn most_likely(logits: &[f32], count: usize, best: &mut Vec<(u32, f32)>) {
    best.clear();
    for (token, logit) in logits.iter().enumerate() {
        if best.len() >= count && best.last().is_none_or(|(_, least)| logit <= least) {
            continue;
        }
        let at = best.partition_point(|(_, kept)| kept >= logit);
        best.insert(at, (token as u32, *logit));
        best.truncate(count);
    }
}

#[cfg(test)]
mod tests;
