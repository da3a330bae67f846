//! Chains and trees as the device is to draft them: what it first takes in.

use std::cmp::Reverse;

use lockstep_backend::{Batch, DraftShape, TreeSize};

use crate::{PageTable, Pass};

/// The first pass of some chains, or of some trees, the deepest first, and whose they are.
#[derive(Debug, Default)]
pub struct ChainPass {
    pass: Pass,
    /// Of each chain its depth, and which of the rows that asked it is.
    chains: Vec<(usize, u32)>,
    /// How each of them grows, where they are trees.
    trees: Vec<TreeSize>,
    /// Of each token of the pass, where the draft reads what the target has kept.
    sources: Vec<u32>,
}

impl ChainPass {
    /// Room for so many chains, whose first pass has up to `tokens` tokens.
    pub fn new(requests: usize, tokens: usize) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            chains: Vec::with_capacity(requests),
            trees: Vec::with_capacity(requests),
            sources: Vec::with_capacity(tokens),
        }
    }

    /// Begins anew: row number `at` is to have `depths[at]` drafts.
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

    /// Begins anew: each of `rows` rows is to have a tree of such a size.
    pub(crate) fn begin_trees(&mut self, rows: usize, size: impl Fn(usize) -> TreeSize) {
        self.begin((0..rows).map(|at| size(at).steps as usize));
        let sizes = self.chains.iter().map(|(_, at)| size(*at as usize));
        self.trees.extend(sizes);
    }

    /// Calls `row` with each chain's row in their order, to add what its first pass takes
    /// in, of which the last token is wanted, and where these tokens have sources them.
    pub(crate) fn fill(&mut self, mut row: impl FnMut(usize, &mut Pass, &mut Vec<u32>)) {
        for (_, at) in &self.chains {
            row(*at as usize, &mut self.pass, &mut self.sources);
            self.pass.want();
        }
    }

    /// See [`lockstep_backend::ChainBatch::sources`].
    pub fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// See [`lockstep_backend::ChainBatch::trees`].
    pub fn trees(&self) -> &[TreeSize] {
        &self.trees
    }

    /// What they are.
    pub fn shape(&self) -> DraftShape {
        match self.trees.as_slice() {
            [] => DraftShape::Chains,
            _ => DraftShape::Trees,
        }
    }

    /// How many, and how deep the deepest is.
    pub fn size(&self) -> (usize, usize) {
        let deepest = self.chains.first().map_or(0, |(depth, _)| *depth);
        (self.chains.len(), deepest)
    }

    /// Which of the rows that asked each chain is.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = usize> {
        self.chains.iter().map(|(_, at)| *at as usize)
    }

    /// The batch of the first pass.
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
