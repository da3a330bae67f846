//! What strangers may hold of the public ports.

use serde::{Deserialize, Serialize};

/// How many connections are served, and how long each may keep the server
/// waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionLimits {
    /// Connections served at once on each port.
    pub per_port: usize,
    /// Of those, connections from one address (IPv6: one /64).
    pub per_peer: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// From a connection's begin to its first bytes, for HTTP/2 to the end of
    /// its preface, seconds.
    pub first_byte_s: u64,
    /// From a request's first byte to the end of its head, seconds.
    pub head_s: u64,
    /// What a request's body may take in all, seconds.
    pub body_s: u64,
    /// What a request's body must bring on average, after a few seconds, bytes
    /// per second; 0 = any rate.
    pub body_rate: u64,
    /// A client may take nothing of its answer for so long, seconds.
    pub send_s: u64,
    /// A connection without a request stays open for so long, seconds.
    pub keep_alive_s: u64,
}
