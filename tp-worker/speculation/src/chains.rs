//! Chains and trees that the device is to draft, and the first pass of their drafter.

use std::cmp::Reverse;

use lockstep_backend::{Batch, DraftShape, TreeSize};

use crate::{PageTable, Pass};

/// The first pass of chains or trees, the deepest first, with the rows that they belong to.
#[derive(Debug, Default)]
pub struct ChainPass {
    pass: Pass,
    /// For each chain, its depth and the index of its row among the step's rows.
    chains: Vec<(usize, u32)>,
    /// For each chain, the growth of its tree; empty if all are chains.
    trees: Vec<TreeSize>,
    /// For each token of the pass, its row of the target's features; empty for drafts that read
    /// none.
    sources: Vec<u32>,
}

impl ChainPass {
    /// Makes room for `requests` chains, whose first pass has up to `tokens` tokens.
    pub fn new(requests: usize, tokens: usize) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            chains: Vec::with_capacity(requests),
            trees: Vec::with_capacity(requests),
            sources: Vec::with_capacity(tokens),
        }
    }

    /// Begins anew with chains: row number `at` is to have `depths[at]` drafts.
    pub(crate) fn begin(&mut self, depths: impl Iterator<Item = usize>) {
        self.pass.clear();
        self.chains.clear();
        self.trees.clear();
        self.sources.clear();
        let deep = (0..).zip(depths).filter(|(_, depth)| *depth > 0);
        self.chains.extend(deep.map(|(at, depth)| (depth, at)));
        self.chains
            .sort_unstable_by_key(|(depth, at)| (Reverse(*depth), *at));
    }

    /// Begins anew with trees: row number `at` of `rows` is to have a tree of `size(at)`.
    pub(crate) fn begin_trees(&mut self, rows: usize, size: impl Fn(usize) -> TreeSize) {
        self.begin((0..rows).map(|at| size(at).steps as usize));
        let sizes = self.chains.iter().map(|(_, at)| size(*at as usize));
        self.trees.extend(sizes);
    }

    /// Calls `row` for each chain, in their order, to add its row to the first pass. The logits
    /// of the row's last token are wanted. `row` also adds the sources of the row's tokens, if
    /// they have any.
    pub(crate) fn fill(&mut self, mut row: impl FnMut(usize, &mut Pass, &mut Vec<u32>)) {
        for (_, at) in &self.chains {
            row(*at as usize, &mut self.pass, &mut self.sources);
            self.pass.want();
        }
    }

    /// Returns the sources: see [`lockstep_backend::ChainBatch::sources`].
    pub fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// Returns the trees: see [`lockstep_backend::ChainBatch::trees`].
    pub fn trees(&self) -> &[TreeSize] {
        &self.trees
    }

    /// Returns the shape of the drafts.
    pub fn shape(&self) -> DraftShape {
        match self.trees.as_slice() {
            [] => DraftShape::Chains,
            _ => DraftShape::Trees,
        }
    }

    /// Returns the number of chains, and the depth of the deepest.
    pub fn size(&self) -> (usize, usize) {
        let deepest = self.chains.first().map_or(0, |(depth, _)| *depth);
        (self.chains.len(), deepest)
    }

    /// Returns, for each chain, the index of its row among the step's rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = usize> {
        self.chains.iter().map(|(_, at)| *at as usize)
    }

    /// Returns the batch of the first pass.
    pub fn batch<'a>(&'a self, pages: PageTable<'a>) -> Batch<'a> {
        self.pass.batch(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_come_first_and_a_step_leaves_nothing_to_the_next() {
        let pages = PageTable {
            entries: &[0],
            page_size: 64,
        };
        let mut chains = ChainPass::new(4, 16);
        let size = |at: usize| TreeSize {
            steps: [1, 0, 2][at],
            branches: [4, 4, 3][at],
        };
        chains.begin_trees(3, size);
        assert_eq!(chains.shape(), DraftShape::Trees);
        assert_eq!(chains.trees(), [size(2), size(0)]);
        assert_eq!(chains.rows().collect::<Vec<_>>(), [2, 0]);
        for _ in 0..2 {
            chains.begin([1, 3, 0, 3].into_iter());
            assert_eq!(chains.shape(), DraftShape::Chains);
            assert!(chains.trees().is_empty());
            assert_eq!(chains.size(), (3, 3));
            assert_eq!(chains.rows().collect::<Vec<_>>(), [1, 3, 0]);
            chains.fill(|at, pass, sources| {
                pass.begin(at, 0);
                pass.push_chain(pages, &vec![at as u32; at + 1], at);
                sources.push(at as u32);
            });
            let batch = chains.batch(pages);
            assert_eq!(batch.tokens, [1, 1, 3, 3, 3, 3, 0]);
            assert_eq!(batch.logit_tokens, [1, 5, 6]);
            assert_eq!(chains.sources(), [1, 3, 0]);
        }
        chains.begin([0, 0].into_iter());
        assert_eq!(chains.size(), (0, 0));
        assert!(chains.batch(pages).tokens.is_empty() && chains.sources().is_empty());
    }
}
