//! Chains and trees of drafts that a device drafts by itself, in passes that it repeats as
//! one.

use lockstep_backend::{Backend, MOST_CANDIDATES, PassKey, TreePass, TreeSize};

use crate::ForwardLimits;

/// Passes of a draft that make chains of drafts, one behind the other, or trees. A device may
/// record them together: one graph for each number of chains, whatever their depth. Levels
/// that no chain has are passes over nothing.
pub struct DraftPasses<B: Backend> {
    pub(crate) passes: B::Passes,
    first: usize,
    /// Most drafts of a chain, or most levels of a tree.
    deepest: usize,
    /// Most nodes that each level of a tree expands; 1 for chains.
    branches: usize,
    /// Sizes of the recorded passes, the largest first.
    recorded: Vec<PassKey>,
}

/// Size of the passes that draft some chains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DraftPassSize {
    /// Size of every pass behind the first one, recorded or not.
    pub key: PassKey,
    /// Number of passes.
    pub levels: usize,
}

/// Sizes of the passes that draft some trees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeLevels {
    /// Most tokens of each tree that the first pass takes in.
    pub first: usize,
    /// Size of the recorded pass, and the nodes that each level expands.
    pub pass: TreePass,
}

impl TreeLevels {
    /// Returns the number of tokens of pass number `level`, and the number of wanted ones.
    pub fn tokens(&self, level: usize) -> (usize, usize) {
        let TreePass { size, branches } = self.pass;
        let (tokens, wanted) = match level {
            0 => (self.first, 1),
            level => (level * branches, branches),
        };
        (size.tokens * tokens, size.tokens * wanted)
    }
}

impl<B: Backend> DraftPasses<B> {
    /// Creates chains of up to `deepest` drafts, or trees if `branches` is more than 1. The
    /// first draft follows up to `first` tokens that have to be taken in.
    pub fn new(first: usize, deepest: usize, branches: usize) -> Self {
        Self {
            passes: B::Passes::default(),
            first: first.max(1),
            deepest,
            branches: branches.max(1),
            recorded: Vec::new(),
        }
    }

    /// Most tokens of each chain that the first pass takes in.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Most nodes that a level of a tree expands; 1 for chains.
    pub fn branches(&self) -> usize {
        self.branches
    }

    /// Returns true if the device drafts these chains or trees by itself, among `vocab`
    /// tokens.
    pub fn serve(&self, backend: &mut B, vocab: usize) -> bool {
        let Some(device) = backend.drafter() else {
            return false;
        };
        let grows = self.branches <= vocab && are_grown(self.deepest, self.branches);
        self.branches == 1 || grows && device.trees().is_some()
    }

    /// Returns true if buffers within `limits` hold `chains` chains.
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

    /// Returns the sizes of the passes of trees that run as `key`.
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

    /// Returns the size of the passes that draft `chains` chains, the deepest of `depth`
    /// drafts. It is the smallest recorded size that fits, if there is one.
    pub(crate) fn size(&self, chains: usize, depth: usize) -> DraftPassSize {
        let recorded = self.recorded.iter().rfind(|key| key.requests >= chains);
        let key = recorded.copied().unwrap_or(PassKey {
            requests: chains,
            tokens: chains,
            max_q_len: 1,
        });
        let levels = recorded.map_or(depth, |_| self.deepest);
        DraftPassSize { key, levels }
    }

    /// Forgets the recorded passes. Returns the sizes of all passes to record, the largest
    /// first.
    pub(crate) fn begin(
        &mut self,
        backend: &B,
        inputs: &B::Inputs,
        limits: &ForwardLimits,
    ) -> Vec<DraftPassSize> {
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
        let whole = |key: &PassKey| DraftPassSize { key: *key, levels };
        self.recorded.iter().map(whole).collect()
    }
}

/// Returns true if a tree of `steps` levels and `branches` branches has few enough candidates
/// for a device that grows trees.
pub(crate) fn are_grown(steps: usize, branches: usize) -> bool {
    let size = TreeSize {
        steps: steps as u32,
        branches: branches as u32,
    };
    size.candidates() <= MOST_CANDIDATES
}
