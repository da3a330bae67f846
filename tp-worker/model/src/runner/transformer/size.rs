//! Size of a pass.

/// Row counts that the host's part of a pass depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// New tokens of the pass.
    pub tokens: Rows,
    /// New tokens whose logits are wanted.
    pub wanted: Rows,
}

/// Number of rows of one DP rank and of all. With one DP rank, the two are equal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// Rows of this rank's DP rank.
    pub own: usize,
    /// Rows of all DP ranks.
    pub all: usize,
}

impl Size {
    /// Size of a pass over `tokens` tokens of each of `dp_ranks` DP ranks. All logits are
    /// wanted.
    pub fn whole(tokens: usize, dp_ranks: usize) -> Self {
        let rows = Rows {
            own: tokens,
            all: tokens * dp_ranks,
        };
        Self {
            tokens: rows,
            wanted: rows,
        }
    }
}
