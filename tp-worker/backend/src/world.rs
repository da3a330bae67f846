//! The rows that all ranks bring to a pass.

use crate::PassKey;

/// Rows of a pass over several DP ranks. All ranks know them before the pass, since they decide
/// what the ranks exchange.
#[derive(Debug, Clone, Copy)]
pub enum WorldSize<'a> {
    /// The number of rows of each DP rank.
    Counted(&'a WorldRows),
    /// The size of a recorded pass. Every DP rank takes part with this size, and none brings
    /// more. Each DP rank wants the logits of all its tokens.
    Padded(PassKey),
}

impl<'a> From<&'a WorldRows> for WorldSize<'a> {
    fn from(rows: &'a WorldRows) -> Self {
        Self::Counted(rows)
    }
}

/// Numbers of tokens that a pass takes in, by DP rank. All ranks know them, since they decide
/// what the ranks exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorldRows {
    /// Number of new tokens, by DP rank.
    pub tokens: Vec<usize>,
    /// Number of these tokens whose logits are wanted, by DP rank.
    pub wanted: Vec<usize>,
}
