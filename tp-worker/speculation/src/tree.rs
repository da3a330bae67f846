//! Dynamic trees of drafts: which nodes are drafted from, and which are kept.

mod paths;
mod sampled;

use lockstep_sampling::log_mass;

use crate::{DraftRow, Drafts, Node};

pub use paths::{push_depths, push_masks};
pub use sampled::Drawing;

/// Grows one request's tree as EAGLE-2 does (Li et al., arXiv:2406.16858).
///
/// The `topk` best tokens after the root are level 1. Each further level has
/// the `topk` best tokens after each of the `topk` best nodes of the level
/// before, best by the sum of log-probabilities on their path. Of the nodes of
/// all levels the `most` best are kept. Among equals the one generated earlier
/// is better, and inside a node the lower token. After a node whose logits are not
/// finite come the first tokens, none of which has any chance: so a tree has as many
/// nodes as its shape says.
///
/// A device grows the same trees of the same logits (`lockstep_backend::DraftTrees`):
/// scores are sums of what [`log_mass`] gives, and have the same bits there.
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
/// Where tokens are drawn, [`Self::sample_level`] takes the place of
/// [`Self::level`] and of [`Self::finish`].
///
/// A masked row sees all cached positions, so what was expanded on earlier
/// levels can't be cached: every level runs all of [`Self::expanded`] anew.
/// After the first tree of a shape nothing is allocated.
#[derive(Debug, Default)]
pub struct TreeGrower {
    shape: TreeShape,
    /// Levels that have been generated.
    levels: usize,
    candidates: Vec<Candidate>,
    expanded: Vec<Expanded>,
    /// Where the frontier begins in `expanded`.
    frontier: usize,
    /// Candidates in some order, while a selection is made.
    order: Vec<u32>,
    /// The best logits of one node, in order.
    best: Vec<(u32, f32)>,
    /// Where tokens are drawn: children of each node of the frontier.
    seats: Vec<usize>,
}

/// How large a tree may become.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeShape {
    /// Levels.
    pub steps: usize,
    /// Nodes expanded per level, and children of each.
    pub topk: usize,
    /// Nodes kept, the root not counted.
    pub most: usize,
}

/// A node that the draft model runs over, to learn what may follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// The token, as the target numbers it.
    pub token: u32,
    /// What it follows: 0 = the root, `n` = the `n`-th of
    /// [`TreeGrower::expanded`], from 1. Always an earlier one.
    pub parent: u32,
    /// Steps from the root, at least 1: its rotary position is the root's plus
    /// this.
    pub depth: u32,
    /// Its index in the grower's candidates.
    candidate: u32,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    /// As [`Expanded::parent`].
    parent: u32,
    /// The sum of log-probabilities from the root on. Never NaN.
    score: f32,
}

impl TreeShape {
    /// What a row's steps, branches, nodes and room allow: the target's
    /// verification writes the root and all kept nodes.
    pub fn of(row: &DraftRow) -> Self {
        let most = row.most.min(row.room.saturating_sub(1));
        Self {
            steps: row.steps.min(most),
            topk: row.topk,
            most,
        }
    }

    /// [`Self::of`], for a drafter that itself writes [`Self::expanded`] nodes
    /// behind `own` positions: 1 where it runs over the root token too, as draft
    /// models do, 0 where the root is part of the last cached pair, as with
    /// EAGLE's heads. Where the end of the context leaves too little room for
    /// these, the tree becomes narrow before it becomes shallow.
    pub fn fit(row: &DraftRow, own: usize) -> Self {
        let Self { steps, topk, most } = Self::of(row);
        let cells = row.room.saturating_sub(own);
        let topk = match steps {
            0 | 1 => topk,
            _ => topk.min(cells / (steps - 1)),
        };
        Self { steps, topk, most }
    }

    /// Nodes that a tree has, after logits of `vocab` tokens each.
    pub fn nodes(self, vocab: usize) -> usize {
        let (each, mut nodes, mut level) = (self.topk.min(vocab), 0usize, 1);
        for _ in 0..self.steps {
            nodes = nodes.saturating_add(level * each);
            level = self.topk.min(level * each);
        }
        nodes.min(self.most)
    }

    /// The most nodes that are ever expanded: the drafter's cells.
    pub fn expanded(self) -> usize {
        self.steps.saturating_sub(1) * self.topk
    }
}

impl TreeGrower {
    /// One that allocates nothing for trees up to `shape`.
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

    /// Generates the next level from `logits`: one row of the draft vocabulary
    /// for every node of the frontier, or the root's row at first. `map` gives
    /// the target's number of a draft token.
    pub fn level(&mut self, logits: &[f32], map: &dyn Fn(u32) -> u32) {
        self.grow(logits, |grower, _, parent, logits| {
            let score = grower.score(parent);
            grower.branch(parent, score, logits, map);
        });
    }

    /// The nodes whose logits [`Self::level`] wants next: the last of
    /// [`Self::expanded`]. None when the tree is deep enough.
    pub fn frontier(&self) -> &[Expanded] {
        &self.expanded[self.frontier..]
    }

    /// All nodes expanded so far, level by level, the frontier included.
    pub fn expanded(&self) -> &[Expanded] {
        &self.expanded
    }

    /// Appends the mask of a pass over [`Self::expanded`] to `masks`, as
    /// [`lockstep_backend::Batch::masks`] wants it: a node sees its ancestors
    /// and itself.
    pub fn push_mask(&self, masks: &mut Vec<u64>) {
        let parents = self.expanded.iter().map(|node| node.parent.checked_sub(1));
        paths::push_closure(self.expanded.len(), parents, masks);
    }

    /// Adds the best nodes to a row of `drafts`, which has none yet.
    pub fn finish(&mut self, drafts: &mut Drafts, row: usize) {
        self.select(0, self.shape.most);
        // A parent is generated before its children and is no worse, so it is
        // kept where one of them is, and stays in front.
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

    /// Generates the next level: `branch` gets the place of each node on the
    /// frontier, the node as candidates name their parents, and its logits.
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

    /// The score of a node as candidates name their parents.
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

    /// The `count` best candidates from number `first` on into `order`, best first.
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

/// The `count` largest of `logits`, in order, the lower index first among
/// equals. One pass: most are only compared with the smallest kept so far.
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
