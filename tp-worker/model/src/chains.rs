//! Chains of drafts that a device drafts by itself, in passes that it repeats as one.

use lockstep_backend::{Backend, PassKey};

use crate::ForwardLimits;

/// How a draft's passes make chains of drafts one behind the other, which a device may
/// record together: one graph for each number of chains, whatever their depth. Levels
/// that no chain has are passes over nothing.
pub struct Chains<B: Backend> {
    pub(crate) passes: B::Passes,
    first: usize,
    /// Drafts of a chain at the most.
    deepest: usize,
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

impl<B: Backend> Chains<B> {
    /// Of up to `deepest` drafts, the first of which is drafted behind up to `first` tokens
    /// that have to be taken in.
    pub fn new(first: usize, deepest: usize) -> Self {
        Self {
            passes: B::Passes::default(),
            first: first.max(1),
            deepest,
            recorded: Vec::new(),
        }
    }

    /// Tokens of each chain that the first pass takes in at the most.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Whether buffers within `limits` hold so many chains.
    pub fn fit(&self, limits: &ForwardLimits, chains: usize) -> bool {
        let tokens = chains.saturating_mul(self.first);
        let rows = limits.requests.min(limits.logit_block_rows);
        tokens <= limits.max_tokens && chains <= rows
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
