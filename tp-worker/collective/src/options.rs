//! Waiting times and buffer sizes of a group.

use std::time::Duration;

/// Settings of a group, equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number of elements (4 bytes each) that a rank stages at once. Longer data move in chunks
    /// of this length. Shared memory needs twice this per rank.
    pub max_elements: usize,
    /// Time that a rank waits for a peer before it takes the peer for dead. It has to exceed
    /// the longest computation between two collectives.
    pub timeout: Duration,
    /// Time that a rank waits for the others while the group forms.
    pub join_timeout: Duration,
    /// Number of compute threads of each rank. If ranks × threads exceed the machine's cores,
    /// waiting threads give way early instead of spinning.
    pub threads_per_rank: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_elements: 64 * 1024,
            timeout: Duration::from_secs(60),
            join_timeout: Duration::from_secs(120),
            threads_per_rank: 1,
        }
    }
}
