//! The collectives a forward pass issues, known before it runs.

/// The kinds of collective a forward pass uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`lockstep_backend::Backend::all_reduce`].
    AllReduce,
    /// [`lockstep_backend::Backend::gather_to_host`].
    Gather,
}

/// One collective: its kind and its elements per row (of all ranks for a gather).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveStep {
    /// The operation.
    pub kind: CollectiveKind,
    /// Elements per row.
    pub width: usize,
}

/// All collectives of a pass, in order. Their list depends on the model alone;
/// the batch only says how many rows they carry and how often `block` runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Over every token, up to the last layer's attention.
    pub tokens: Vec<CollectiveStep>,
    /// Over the tokens whose logits are wanted; absent when there are none.
    pub logit_tokens: Vec<CollectiveStep>,
    /// Once per block of `block_rows` wanted rows.
    pub block: Vec<CollectiveStep>,
    /// Rows of a block.
    pub block_rows: usize,
}

impl Schedule {
    /// The collectives of a pass that wants `logit_rows` rows of logits.
    pub fn steps(&self, logit_rows: usize) -> impl Iterator<Item = &CollectiveStep> {
        let blocks = logit_rows.div_ceil(self.block_rows);
        let tail = if logit_rows > 0 {
            self.logit_tokens.as_slice()
        } else {
            &[]
        };
        self.tokens
            .iter()
            .chain(tail)
            .chain(std::iter::repeat_n(&self.block, blocks).flatten())
    }
}
