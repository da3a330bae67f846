//! Limits for the connections of a public port, whoever opens them.

use serde::{Deserialize, Serialize};

/// Number of connections that are served, and the time that each may keep the server waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionLimits {
    /// Connections served at once on each port.
    pub per_port: usize,
    /// Connections served at once from one address (IPv6: from one /64), of those of a port.
    pub per_peer: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Time limit from a connection's begin to its first bytes, seconds. For HTTP/2 it lasts to
    /// the end of the preface.
    pub first_byte_s: u64,
    /// Time limit from a request's first byte to the end of its head, seconds.
    pub head_s: u64,
    /// Time limit for a request's body, seconds.
    pub body_s: u64,
    /// Least average rate of a request's body after its first few seconds, bytes per second; 0
    /// = any rate.
    pub body_rate: u64,
    /// Longest time in which a client may take nothing of its answer, seconds.
    pub send_s: u64,
    /// Time for which a connection without a request stays open, seconds.
    pub keep_alive_s: u64,
}
