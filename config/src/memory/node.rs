//! Bytes that the ranks of a node take, by kind.

use lockstep_types::RankMemory;

/// Bytes that a node's ranks take.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeMemory {
    /// Weights of targets, and weights of drafts.
    pub(super) weights: u64,
    pub(super) drafts: u64,
    /// Memory of steps beside weights and cache.
    pub(super) activations: u64,
    /// The part of `activations` that exchanges between ranks take.
    pub(super) exchange: u64,
    /// Keys and values of one cached token, in the groups of layers that keep all positions.
    pub(super) per_token: u64,
    /// Those in the groups with sliding windows.
    pub(super) window_per_token: u64,
    /// One state of recurrent layers.
    pub(super) per_state: u64,
    /// Memory on the host, beside a device with memory of its own.
    pub(super) host: u64,
}

impl NodeMemory {
    /// Adds a rank with `records` records of verified nodes in its recurrent layers.
    pub(super) fn add(&mut self, rank: &RankMemory, records: usize, on_host: bool) {
        let sum = |values: &[u64]| values.iter().fold(0, |a: u64, b| a.saturating_add(*b));
        let RankMemory {
            target,
            draft,
            scratch,
            graphs,
            exchange,
            gathered,
        } = rank;
        let exchange = sum(&[*exchange, *gathered]);
        self.weights = sum(&[self.weights, target.weights, target.vectors]);
        self.drafts = sum(&[self.drafts, draft.weights, draft.vectors]);
        self.activations = sum(&[
            self.activations,
            target.activations,
            draft.activations,
            *scratch,
            *graphs,
            exchange,
            target.record.saturating_mul(records as u64),
        ]);
        self.exchange = self.exchange.saturating_add(exchange);
        let host = target.host.saturating_add(draft.host);
        let on = if on_host {
            &mut self.activations
        } else {
            &mut self.host
        };
        *on = on.saturating_add(host);
        self.per_state = self.per_state.saturating_add(target.state);
        self.per_token = sum(&[self.per_token, target.kv_per_token, draft.kv_per_token]);
        self.window_per_token = sum(&[
            self.window_per_token,
            target.kv_window_per_token,
            draft.kv_window_per_token,
        ]);
    }
}
