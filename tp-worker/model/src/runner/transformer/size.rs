//! How large a pass is.

/// What the host's part of a pass depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// New tokens.
    pub tokens: Rows,
    /// Those of them whose logits are wanted.
    pub wanted: Rows,
}

/// How many, of a DP rank and of all; the same where there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// Of this rank's DP rank.
    pub own: usize,
    /// Of all DP ranks.
    pub all: usize,
}

impl Size {
    /// Of a pass over `tokens` tokens of each of so many DP ranks, whose logits are all
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
