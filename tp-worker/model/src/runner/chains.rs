//! Chains and trees of drafts that a device drafts by itself, in passes that it repeats
//! as one.

use lockstep_backend::{Backend, MOST_CANDIDATES, PassKey, TreePass, TreeSize};

use crate::ForwardLimits;

/// How a draft's passes make chains of drafts one behind the other, or trees, which a
/// device may record together: one graph for each number of them, whatever their depth.
/// Levels that none has are passes over nothing.
pub struct Chains<B: Backend> {
    pub(crate) passes: B::Passes,
    first: usize,
    /// Drafts of a chain, or levels of a tree, at the most.
    deepest: usize,
    /// Nodes that are expanded of a level of a tree, at the most; 1: they are chains.
    branches: usize,
    /// The passes that are recorded, the largest first.
    recorded: Vec<PassKey>,
}

/// Some chains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainsSize {
    /// Of the recorded pass, or of one that is not: of every pass behind the first one.
    pub key: PassKey,
    /// Passes.
    pub levels: usize,
}

/// The passes of some trees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeLevels {
    /// Tokens of each that the first one takes in at the most.
    pub first: usize,
    /// What comes behind each of them.
    pub pass: TreePass,
}

impl TreeLevels {
    /// Tokens of pass number `level`, and how many of them are wanted.
    pub fn tokens(&self, level: usize) -> (usize, usize) {
        let TreePass { size, branches } = self.pass;
        let (tokens, wanted) = match level {
            0 => (self.first, 1),
            level => (level * branches, branches),
        };
        (size.tokens * tokens, size.tokens * wanted)
    }
}

impl<B: Backend> Chains<B> {
    /// Of up to `deepest` drafts, the first of which is drafted behind up to `first` tokens
    /// that have to be taken in; with more than one of `branches`, of trees.
    pub fn new(first: usize, deepest: usize, branches: usize) -> Self {
        Self {
            passes: B::Passes::default(),
            first: first.max(1),
            deepest,
            branches: branches.max(1),
            recorded: Vec::new(),
        }
    }

    /// Tokens of each chain that the first pass takes in at the most.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Nodes that a level of a tree expands at the most; 1: they are chains.
    pub fn branches(&self) -> usize {
        self.branches
    }

    /// Whether the device drafts them by itself, of tokens among `vocab`.
    pub fn serve(&self, backend: &mut B, vocab: usize) -> bool {
        let Some(device) = backend.drafter() else {
            return false;
        };
        let grows = self.branches <= vocab && are_grown(self.deepest, self.branches);
        self.branches == 1 || grows && device.trees().is_some()
    }

    /// Whether buffers within `limits` hold so many chains.
    pub fn fit(&self, limits: &ForwardLimits, chains: usize) -> bool {
        let (mut each, mut wanted) = (self.first, 1);
        if self.branches > 1 {
            each = each.max(self.deepest.saturating_mul(self.branches));
            wanted = self.branches;
        }
        chains.saturating_mul(each) <= limits.max_tokens
            && chains.saturating_mul(wanted) <= limits.logit_block_rows
            && chains <= limits.requests
    }

    /// The passes of trees that run as `key`.
    pub(crate) fn tree_levels(&self, key: PassKey) -> TreeLevels {
        let pass = TreePass {
            size: key,
            branches: self.branches,
        };
        TreeLevels {
            first: self.first,
            pass,
        }
    }

    /// The pass that serves so many chains, the deepest of `depth` drafts.
    pub(crate) fn size(&self, chains: usize, depth: usize) -> ChainsSize {
        let recorded = self.recorded.iter().rfind(|key| key.requests >= chains);
        let key = recorded.copied().unwrap_or(PassKey {
            requests: chains,
            tokens: chains,
            max_q_len: 1,
        });
        let levels = recorded.map_or(depth, |_| self.deepest);
        ChainsSize { key, levels }
    }

    /// Forgets what was recorded; all passes that are to be, the largest first.
    pub(crate) fn begin(
        &mut self,
        backend: &B,
        inputs: &B::Inputs,
        limits: &ForwardLimits,
    ) -> Vec<ChainsSize> {
        self.passes = B::Passes::default();
        let sizes = backend.repeated(inputs).into_iter().map(|key| key.tokens);
        let key = |width: usize| PassKey {
            requests: width,
            tokens: width,
            max_q_len: width,
        };
        self.recorded = sizes
            .filter(|width| self.fit(limits, *width))
            .map(key)
            .collect();
        let levels = self.deepest;
        let whole = |key: &PassKey| ChainsSize { key: *key, levels };
        self.recorded.iter().map(whole).collect()
    }
}

/// Whether devices grow trees of so many levels and branches, if they grow any.
pub(crate) fn are_grown(steps: usize, branches: usize) -> bool {
    let size = TreeSize {
        steps: steps as u32,
        branches: branches as u32,
    };
    size.candidates() <= MOST_CANDIDATES
}
