//! What became of a port's connections, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockstep_proto::pb::lockstep::{ClosedLoad, PortLoad};

/// Why the server ended a connection, or a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Its first bytes did not come in time.
    Silent,
    /// A request's head was begun and did not end in time.
    SlowHead,
    /// A request's body was too slow: the request ended, and over HTTP/1.1 its
    /// connection with it.
    SlowBody,
    /// Its client took nothing of an answer for too long: the answer was
    /// dropped, and with the last one its connection ended.
    Stalled,
    /// The process holds as many bytes of requests as it may, of all, of this
    /// address, or of those without a key: this one ended.
    OverBudget,
    /// No request came for too long.
    Idle,
    /// It waited longest when another needed its place.
    Evicted,
    /// There was no place for it, not even a probe's.
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

    /// As metrics name it.
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
    /// Connections that have a place now, those of probes included.
    pub open: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Since the start, by reason.
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
