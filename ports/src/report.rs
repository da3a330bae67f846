//! Counts of a port's connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockstep_proto::pb::lockstep::{ClosedLoad, PortLoad};

/// Reason why the server ended a connection, or a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The first bytes did not come in time.
    Silent,
    /// The head of a request was begun and did not end in time.
    SlowHead,
    /// The body of a request was too slow. The request ended, and over HTTP/1.1 its
    /// connection too.
    SlowBody,
    /// The client took nothing of an answer for too long. The answer was dropped, and
    /// with the last answer the connection ended.
    Stalled,
    /// The process holds as many bytes as it may, of all requests, of this address's,
    /// or of requests without a key. The request ended.
    OverBudget,
    /// No request came for too long.
    Idle,
    /// The connection waited longest when another one needed a place.
    Evicted,
    /// There was no place for the connection, not even a probe's.
    Refused,
}

impl Closed {
    const ALL: [Self; 8] = [
        Self::Silent,
        Self::SlowHead,
        Self::SlowBody,
        Self::Stalled,
        Self::OverBudget,
        Self::Idle,
        Self::Evicted,
        Self::Refused,
    ];

    /// Returns the reason's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::SlowHead => "slow_head",
            Self::SlowBody => "slow_body",
            Self::Stalled => "stalled",
            Self::OverBudget => "over_budget",
            Self::Idle => "idle",
            Self::Evicted => "evicted",
            Self::Refused => "refused",
        }
    }
}

/// The state of a port.
#[derive(Debug, Clone)]
pub struct PortReport {
    /// The port's name.
    pub port: &'static str,
    /// Connections that have a place now, probes included.
    pub open: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Counts of closed connections since the start, by reason.
    pub closed: Vec<(Closed, u64)>,
}

impl From<PortReport> for PortLoad {
    fn from(report: PortReport) -> Self {
        let closed = report.closed.iter().map(|(reason, count)| ClosedLoad {
            reason: reason.name().to_owned(),
            count: *count,
        });
        Self {
            port: report.port.to_owned(),
            open: report.open,
            accepted: report.accepted,
            closed: closed.collect(),
        }
    }
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    accepted: AtomicU64,
    closed: [AtomicU64; Closed::ALL.len()],
}

impl Counters {
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(crate) fn closed(&self, reason: Closed) {
        self.closed[reason as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn report(&self, port: &'static str, open: usize) -> PortReport {
        let closed = Closed::ALL.map(|reason| (reason, self.closed[reason as usize].load(Relaxed)));
        PortReport {
            port,
            open: open as u64,
            accepted: self.accepted.load(Relaxed),
            closed: closed.to_vec(),
        }
    }
}
