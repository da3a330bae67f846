//! What all ranks bring to a pass.

use crate::PassKey;

/// What all ranks know alike of a pass over the rows of several DP ranks, before it
/// runs: it decides over what they exchange.
#[derive(Debug, Clone, Copy)]
pub enum World<'a> {
    /// What each of them brings.
    Counted(&'a WorldRows),
    /// The pass has a size that the device repeats, and as many rows of each DP rank,
    /// none of which brings more; each wants the logits of all that it brings.
    Padded(PassKey),
}

impl<'a> From<&'a WorldRows> for World<'a> {
    fn from(rows: &'a WorldRows) -> Self {
        Self::Counted(rows)
    }
}

/// By DP rank, what a pass takes in: known to all ranks alike, since it decides
/// over what they exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorldRows {
    /// New tokens.
    pub tokens: Vec<usize>,
    /// Those of them whose logits are wanted.
    pub wanted: Vec<usize>,
}
