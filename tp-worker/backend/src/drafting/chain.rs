//! Chains of drafts that a device makes by itself, for the batch that verifies them.

use crate::{Axis, BackendError, Batch, DeviceTreeDrafter, PassKey};

/// A device that drafts chains by itself. The copy that brings the batch comes first, the
/// batch's pass last; between them nothing of a draft passes through the host. `T`, `I` and `V`
/// are the device's tensors, inputs and vectors. All but [`Self::load_ids`] and the clock may
/// be part of a recorded pass; `size` is the size of that pass, and every token of it is a
/// chain.
pub trait DeviceDrafter<T, I, V> {
    /// Uploads the target's numbers of a draft's tokens, for [`Self::advance`] alone.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_ids(&mut self, ids: &[u32]) -> Result<V, BackendError>;
    /// Stages in `inputs` the first pass of the chains that came with the batch staged in
    /// `verified`. It has at most `first` tokens for each chain, and the logits of the last one
    /// are wanted.
    fn begin(&mut self, verified: &I, inputs: &mut I, size: PassKey, first: usize);
    /// `out[i] = x[sources[i]]`, with the [`ChainBatch::sources`] that came with the first pass
    /// staged in `inputs`.
    fn take_sources(&mut self, x: &T, inputs: &I, out: &mut T);
    /// Drafts a token for every chain that has not reached its depth: the most likely token of
    /// its row of `logits`, the first among equals, and token 0 if no token is more likely than
    /// another. With `ids`, the token becomes the target's number of it. The token is stored as
    /// number `level` of the chain's drafts in `verified`. `inputs` get the next pass, as
    /// `begin` stages it: one token of each chain that goes on. Up to the end of the pass,
    /// operations over as many rows as `size` has tokens compute only these chains; other rows
    /// may hold anything. If no chain goes on, no weights need be read.
    fn advance(
        &mut self,
        logits: (&T, Option<&V>),
        level: usize,
        verified: &mut I,
        inputs: &mut I,
        size: PassKey,
    );
    /// Begins to time what is queued from here on, by the device's clock: hosts only see when a
    /// whole step is done. Called outside of recorded passes.
    fn start_clock(&mut self);
    /// Ends the timing: work queued after this call does not count.
    fn stop_clock(&mut self);
    /// Returns the timed microseconds of work that the host has waited for. It is 0 if nothing
    /// was timed since the last call, or if the device has no clock.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn clocked_us(&mut self) -> Result<u32, BackendError>;
    /// Gives the drafts that the device of `axis`'s first rank has made to the other ranks. All
    /// of them have staged the same batch, of up to `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn tell(&mut self, axis: Axis, verified: &mut I, tokens: usize) -> Result<(), BackendError>;
    /// Returns the operations that draft trees, if the device does.
    fn trees(&mut self) -> Option<&mut dyn DeviceTreeDrafter<T, I, V>> {
        None
    }
}

/// The largest [`ChainBatch`] that fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChainLimits {
    /// Number of chains.
    pub chains: usize,
    /// Number of tokens of the first pass.
    pub tokens: usize,
    /// Number of entries of its page tables.
    pub pages: usize,
    /// Number of trees among the chains.
    pub trees: usize,
}

impl ChainLimits {
    /// Returns the room that the chains of `batch` take, over pages of `page_size` tokens.
    pub fn of(batch: &Batch<'_>, page_size: usize) -> Self {
        let Some(chain) = &batch.chain else {
            return Self::default();
        };
        let rows = 0..chain.first.rows.len();
        Self {
            chains: rows.len(),
            tokens: chain.first.tokens.len(),
            pages: rows.map(|row| chain.pages(batch, row, page_size)).sum(),
            trees: chain.trees.len(),
        }
    }

    /// Returns true if there is room for `batch`.
    pub fn hold(&self, batch: &Self) -> bool {
        batch.chains <= self.chains
            && batch.tokens <= self.tokens
            && batch.pages <= self.pages
            && batch.trees <= self.trees
    }
}

/// Returns the first rule of kernels that the chains of `batch` break.
pub(crate) fn broken_rule(batch: &Batch<'_>, page_size: usize) -> Option<&'static str> {
    let chain = batch.chain.as_ref()?;
    let (rows, count) = (chain.first.rows, chain.requests.len());
    if rows.len() != count || chain.first.logit_tokens.len() != count {
        return Some("every chain has a row and one wanted token");
    }
    let mut before = usize::MAX;
    if !chain.sources.is_empty() && chain.sources.len() != chain.first.tokens.len() {
        return Some("every token of a first pass has a source, or none has");
    }
    for (number, row) in rows.iter().enumerate() {
        let depth = chain.depth(batch, number);
        if depth == 0 || depth > before {
            return Some("chains are those of requests with drafts, the deepest first");
        }
        before = depth;
        if chain.first.logit_tokens[number] + 1 != row.start + row.q_len || row.mask.is_some() {
            return Some("a chain goes on behind the last token of a row without a mask");
        }
        let table = row.pages_start as usize + chain.pages(batch, number, page_size);
        if table > chain.first.pages.len() {
            return Some("a chain's page table lies among those of its batch");
        }
        let request = chain.requests[number] as usize;
        let is_tree = |request: usize| batch.choices.drafted[request].parents.is_some();
        if batch.choices.is_hosts(request) || (chain.trees.is_empty() && is_tree(request)) {
            return Some("a chain belongs to a request whose tokens the device chooses");
        }
    }
    super::tree::broken_rule(batch)
}

#[cfg(test)]
mod tests {
    use crate::{
        ChainBatch, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow, InputLimits, Row,
    };

    use super::*;

    const PAGE_SIZE: usize = 4;

    const fn row(q_len: u32, start: u32, kv_len: u32) -> Row {
        Row {
            start,
            q_len,
            kv_len,
            pages_start: 0,
            mask: None,
        }
    }

    fn drafted(token: u32, nodes: u32) -> DraftedRow {
        DraftedRow {
            logits: token,
            token,
            nodes,
            parents: None,
        }
    }

    const FIRST: Batch<'_> = Batch {
        tokens: &[7; 3],
        positions: &[4, 5, 4],
        cells: &[4, 5, 4],
        rows: &[row(2, 0, 4), row(1, 2, 4)],
        pages: &[0, 1],
        logit_tokens: &[1, 2],
        masks: &[],
        states: &[],
        adapters: &[],
        replays: &[],
        keeps: &[],
        choices: ChoiceBatch {
            choices: &[],
            rows: &[],
            drafted: &[],
            parents: &[],
        },
        chain: None,
        told: None,
    };

    /// Returns the broken rule, and the room taken, of a batch with one request with one draft
    /// and one with two.
    fn found(
        first: &Batch<'_>,
        requests: &[u32],
        how: ChoiceMethod,
    ) -> (Option<&'static str>, ChainLimits) {
        let choice = Choice {
            how,
            seed: 0,
            position: 0,
        };
        let uses = [0, 0, 1, 1, 1].map(|request| ChoiceRow { request, depth: 0 });
        let batch = Batch {
            tokens: &[7; 5],
            positions: &[4, 5, 5, 6, 7],
            cells: &[4, 5, 5, 6, 7],
            rows: &[row(2, 0, 4), row(3, 2, 5)],
            pages: &[0, 1],
            logit_tokens: &[0, 1, 2, 3, 4],
            choices: ChoiceBatch {
                choices: &[choice; 2],
                rows: &uses,
                drafted: &[drafted(0, 1), drafted(2, 2)],
                parents: &[],
            },
            chain: Some(ChainBatch {
                first,
                requests,
                sources: &[],
                trees: &[],
            }),
            ..Batch::default()
        };
        let limits = InputLimits::of(&batch, PAGE_SIZE).chain;
        (broken_rule(&batch, PAGE_SIZE), limits)
    }

    #[test]
    fn chains_that_kernels_could_not_follow_are_found() {
        let (broken, limits) = found(&FIRST, &[1, 0], ChoiceMethod::Greedy);
        assert_eq!(broken, None);
        let expected = ChainLimits {
            chains: 2,
            tokens: 3,
            pages: 4,
            trees: 0,
        };
        assert_eq!(limits, expected);
        assert!(limits.hold(&expected) && !ChainLimits::default().hold(&limits));
        let near = Batch {
            pages: &[0],
            ..FIRST
        };
        let early = Batch {
            logit_tokens: &[0, 2],
            ..FIRST
        };
        // The deeper chain last; a request of two missing; a request that the host chooses for;
        // a missing page; a chain that goes on before its row's end.
        for (first, requests, how) in [
            (&FIRST, &[0, 1][..], ChoiceMethod::Greedy),
            (&FIRST, &[1, 2], ChoiceMethod::Greedy),
            (&FIRST, &[1], ChoiceMethod::Greedy),
            (&FIRST, &[1, 0], ChoiceMethod::Host),
            (&near, &[1, 0], ChoiceMethod::Greedy),
            (&early, &[1, 0], ChoiceMethod::Greedy),
        ] {
            let (broken, _) = found(first, requests, how);
            assert!(broken.is_some(), "{requests:?} {how:?}");
        }
    }
}
