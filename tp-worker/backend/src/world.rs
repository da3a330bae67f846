//! What all ranks bring to a pass.

/// By DP rank, what a pass takes in: known to all ranks alike, since it decides
/// over what they exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorldRows {
    /// New tokens.
    pub tokens: Vec<usize>,
    /// Those of them whose logits are wanted.
    pub wanted: Vec<usize>,
}
