//! Chains and trees of drafts, grown level by level over all rows at once.

pub(crate) mod chains;
pub(crate) mod layout;
mod trees;

use lockstep_backend::Backend;
use lockstep_model::HiddenSource;

use crate::{Device, DraftError, DraftRow, Drafts, Pass, choose::Chooser};

/// A model that drafts one level after the other.
pub(crate) trait Proposer<B: Backend> {
    /// Returns the number of columns of the model's logits.
    fn vocab(&self) -> usize;

    /// Returns the target's ids of the model's tokens; `None` if they are equal.
    fn ids(&self) -> Option<&[u32]>;

    /// Returns the position of the cell of a node of depth 1, counted from a row's `kv_len`.
    fn first_cell(&self) -> usize;

    /// Number of layers that draft in turn. The pass of level `n` runs layer number `n`, the last one
    /// from there on, and the first level has no pass. While layers change, each pass runs over
    /// all nodes so far, because a layer has seen none of them before.
    fn layers(&self) -> usize {
        1
    }

    /// Computes the logits of each row's first draft.
    fn first(&mut self, device: &mut Device<'_, B>, rows: &[DraftRow]) -> Result<(), DraftError>;

    /// Runs a pass over drafted tokens. `sources` names, for each token, the hidden state that
    /// it follows.
    fn next(
        &mut self,
        device: &mut Device<'_, B>,
        pass: &Pass,
        sources: &[HiddenSource],
    ) -> Result<(), DraftError>;

    /// Returns the logits computed last: `[rows, vocab]`, or `[wanted, vocab]` for a pass.
    fn logits(&self) -> &[f32];
}

/// Drafts chains and trees, in buffers that are reused.
#[derive(Debug)]
pub(crate) struct Growth {
    pass: Pass,
    sources: Vec<HiddenSource>,
    /// Indices of the rows that draft, among all rows.
    active: Vec<usize>,
    /// The rows that draft.
    rows: Vec<DraftRow>,
    /// Upper bound of the chance that the drafts of each of them are all accepted.
    chances: Vec<f32>,
    /// Start of the tokens of each of them in the last pass of chains.
    starts: Vec<u32>,
    trees: trees::Trees,
    chooser: Chooser,
}

impl Growth {
    /// Makes buffers for `requests` rows and passes of `tokens` tokens.
    pub fn new(requests: usize, tokens: usize, chooser: Chooser) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            sources: Vec::with_capacity(tokens),
            active: Vec::with_capacity(requests),
            rows: Vec::with_capacity(requests),
            chances: Vec::with_capacity(requests),
            starts: Vec::with_capacity(requests),
            trees: trees::Trees::default(),
            chooser,
        }
    }

    /// Drafts for all rows that want drafts: trees if some row branches, otherwise chains.
    ///
    /// # Errors
    /// The errors of the model.
    pub fn draft<B: Backend>(
        &mut self,
        model: &mut impl Proposer<B>,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        self.active.clear();
        let wants = |at: &usize| rows[*at].steps.min(rows[*at].most) > 0;
        self.active.extend((0..rows.len()).filter(wants));
        self.rows.clear();
        self.rows.extend(self.active.iter().map(|at| rows[*at]));
        if self.rows.is_empty() {
            return Ok(());
        }
        if self.rows.iter().any(|row| row.topk > 1) {
            self.trees(model, device, drafts)
        } else {
            self.chains(model, device, drafts)
        }
    }
}

#[cfg(test)]
mod tests;
