//! Limits of a port's connections and of its requests' bodies.

use std::time::Duration;

use crate::report::Closed;

/// Effective limits of a port.
#[derive(Debug, Clone)]
pub(crate) struct PortLimits {
    pub(crate) connections: usize,
    pub(crate) per_peer: usize,
    pub(crate) streams: u32,
    pub(crate) first_bytes: Duration,
    pub(crate) head: Duration,
    pub(crate) request: Duration,
    /// Time in which an answer's next part must be taken.
    pub(crate) send: Duration,
    pub(crate) body: Option<BodyLimits>,
    /// Time after which the server asks an HTTP/2 peer for a sign of life.
    pub(crate) ask: Duration,
    /// Time limit for the peer's answer.
    pub(crate) answer: Duration,
}

/// Minimum speed of a request's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) whole: Duration,
    /// Bytes per second; 0 for any speed.
    pub(crate) rate: u64,
    /// Maximum silence while other requests find no memory.
    pub(crate) silence: Duration,
}

impl PortLimits {
    /// Time limits for tests: first bytes one hour, a head two, a request four, taking
    /// an answer's part eight.
    #[cfg(test)]
    pub(crate) fn for_tests(connections: usize, per_peer: usize) -> Self {
        Self {
            connections,
            per_peer,
            streams: 1,
            first_bytes: Duration::from_secs(3600),
            head: Duration::from_secs(2 * 3600),
            request: Duration::from_secs(4 * 3600),
            send: Duration::from_secs(8 * 3600),
            body: None,
            ask: Duration::from_secs(20),
            answer: Duration::from_secs(20),
        }
    }

    /// Reduces the limit to `most` connections, and a peer's limit in proportion.
    pub(crate) fn shrink(&mut self, most: usize) {
        self.per_peer = (self.per_peer.saturating_mul(most) / self.connections).max(1);
        self.connections = most;
    }

    pub(crate) fn of(&self, wait: Wait) -> Duration {
        match wait {
            Wait::FirstBytes => self.first_bytes,
            Wait::Head => self.head,
            Wait::Request => self.request,
        }
    }
}

/// Wait of a connection without a request: the next step of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The connection must send its first bytes.
    FirstBytes,
    /// The connection must end the head that it has begun.
    Head,
    /// The connection may begin a request.
    Request,
}

impl Wait {
    /// Returns the reason for closing a connection that has waited too long.
    pub(crate) fn outlasted(self) -> Closed {
        match self {
            Self::FirstBytes => Closed::Silent,
            Self::Head => Closed::SlowHead,
            Self::Request => Closed::Idle,
        }
    }
}
