//! The size of a pass.

use std::fmt;

/// The size of a pass, by which a device tells recorded passes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassKey {
    /// Number of rows.
    pub requests: usize,
    /// Number of new tokens of all rows.
    pub tokens: usize,
    /// Number of new tokens of the longest row.
    pub max_q_len: usize,
}

impl PassKey {
    /// Returns true if a batch of the size `batch` fits.
    pub fn holds(&self, batch: &Self) -> bool {
        batch.requests <= self.requests
            && batch.tokens <= self.tokens
            && batch.max_q_len <= self.max_q_len
    }
}

impl fmt::Display for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests,
            tokens,
            max_q_len,
        } = self;
        write!(
            f,
            "{requests} rows of {tokens} tokens, {max_q_len} in the longest"
        )
    }
}
