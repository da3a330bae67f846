//! One port: its name, its protocol and its limits.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use lockstep_types::ConnectionLimits;
use rustix::process::{Resource, getrlimit};
use tonic::Status;

use crate::{
    budget::{Budget, OverBudget},
    limits::{BodyLimits, PortLimits},
    peer::Peer,
    places::{Full, PROBES, Places},
    report::PortReport,
    tls::Tls,
};

/// Idle time after which the server asks peers of public ports for a sign of life, and
/// time limit for their answer.
const ASK_CLIENTS: Duration = Duration::from_secs(20);
/// The times for nodes, whose work waits for each other.
const ASK_NODES: Duration = Duration::from_secs(2);
const NODES_ANSWER: Duration = Duration::from_secs(3);
/// Maximum silence of a body while other requests find no memory, however much the body
/// has sent before.
const SILENCE: Duration = Duration::from_secs(20);
/// Places on a port for nodes, besides those of the ranks themselves.
const SPARE_FOR_NODES: usize = 64;
/// File descriptors that a process needs besides its connections'.
const OTHER_DESCRIPTORS: usize = 64;
/// Maximum ports of one process; they share its descriptors.
const PORTS: usize = 2;
/// Maximum concurrent calls on a node's connection; a node needs one.
const STREAMS_OF_NODES: u32 = 64;
/// Maximum bytes of the heads of nodes' calls; hyper's default.
const HEAD_OF_NODES: u32 = 16 << 10;

/// Calls that last as long as their client likes, and need no key.
const ENDLESS: [&str; 3] = [
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Services that need no key, even if the server has one.
const WITHOUT_KEY: [&str; 2] = ["/grpc.health.", "/grpc.reflection."];

/// Protocol of a port.
#[derive(Clone)]
pub enum Protocol {
    /// HTTP/1.1 and HTTP/2.
    Http {
        /// Maximum bytes of a request's head that hyper reads; the routes have a lower
        /// limit.
        head_bytes: u32,
        /// Makes the answer for a connection without a place, from a sentence that
        /// names the limit.
        refusal: fn(String) -> Response,
        /// Makes the answer for a request that is over the budget.
        over_budget: fn(OverBudget) -> Response,
        /// Paths that are answered even without a place.
        probes: &'static [&'static str],
    },
    /// gRPC, only over HTTP/2.
    Grpc {
        /// Maximum bytes of a call's head.
        head_bytes: u32,
    },
}

/// A port that strangers can reach. See [`Port::serve`].
pub struct Port {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    pub(crate) limits: PortLimits,
    pub(crate) places: Arc<Places>,
    /// Budgets; `None` if nobody can send much before showing a secret.
    pub(crate) budgets: Option<Budgets>,
    /// TLS settings; `None` if the port speaks no TLS.
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Budgets that requests draw on: those of a port, or of one of its connections.
#[derive(Clone)]
pub(crate) struct Budgets {
    all: Arc<Budget>,
    without_key: Arc<Budget>,
}

impl Port {
    /// Makes a port for clients. Its requests share `budget` with the requests of the
    /// process's other ports. With `tls`, the port speaks TLS.
    pub fn public(
        name: &'static str,
        protocol: Protocol,
        limits: &ConnectionLimits,
        budget: Arc<Budget>,
        tls: Option<Arc<Tls>>,
    ) -> Arc<Self> {
        let limits = PortLimits {
            connections: limits.per_port,
            per_peer: limits.per_peer,
            streams: limits.streams,
            first_bytes: Duration::from_secs(limits.first_byte_s),
            head: Duration::from_secs(limits.head_s),
            request: Duration::from_secs(limits.keep_alive_s),
            send: Duration::from_secs(limits.send_s),
            body: Some(BodyLimits {
                whole: Duration::from_secs(limits.body_s),
                rate: limits.body_rate,
                silence: SILENCE,
            }),
            ask: ASK_CLIENTS,
            answer: ASK_CLIENTS,
        };
        Self::new(name, protocol, limits, Some(budget), tls)
    }

    /// Makes a port for nodes with `ranks` ranks in all. Nodes show a secret and, with
    /// `tls`, certificates. After that, the bodies of their calls have no time limit,
    /// since a node's stream lasts as long as the node.
    pub fn nodes(
        name: &'static str,
        ranks: usize,
        limits: &ConnectionLimits,
        tls: Option<Arc<Tls>>,
    ) -> Arc<Self> {
        let connections = SPARE_FOR_NODES.saturating_add(ranks);
        let limits = PortLimits {
            connections,
            per_peer: connections,
            streams: STREAMS_OF_NODES,
            first_bytes: Duration::from_secs(limits.first_byte_s),
            head: Duration::from_secs(limits.head_s),
            request: Duration::from_secs(limits.keep_alive_s),
            send: Duration::from_secs(limits.send_s),
            body: None,
            ask: ASK_NODES,
            answer: NODES_ANSWER,
        };
        let head_bytes = HEAD_OF_NODES;
        Self::new(name, Protocol::Grpc { head_bytes }, limits, None, tls)
    }

    /// Makes a port for HTTP.
    #[cfg(test)]
    pub(crate) fn for_tests(
        limits: PortLimits,
        budget: Option<Arc<Budget>>,
        tls: Option<Arc<Tls>>,
    ) -> Arc<Self> {
        let protocol = Protocol::Http {
            head_bytes: 96 << 10,
            refusal: |message| Response::new(message.into()),
            over_budget: |over| Response::new(over.to_string().into()),
            probes: &[],
        };
        Self::new("x", protocol, limits, budget, tls)
    }

    pub(crate) fn new(
        name: &'static str,
        protocol: Protocol,
        mut limits: PortLimits,
        budget: Option<Arc<Budget>>,
        tls: Option<Arc<Tls>>,
    ) -> Arc<Self> {
        let most = descriptors().saturating_sub(OTHER_DESCRIPTORS) / PORTS;
        let most = most.saturating_sub(PROBES).max(1);
        if limits.connections > most {
            tracing::warn!(
                "port {name} serves {most} connections, not {}: give the server more open files \
                 (`ulimit -Hn`, LimitNOFILE)",
                limits.connections
            );
            limits.shrink(most);
        }
        Arc::new(Self {
            name,
            protocol,
            places: Places::new(limits.clone()),
            limits,
            budgets: budget.map(Budgets::new),
            tls,
        })
    }

    /// Returns the port's state and counts.
    pub fn report(&self) -> PortReport {
        self.places.report(self.name)
    }

    /// Returns the answer for a request on a connection without a place.
    pub(crate) fn refusal(&self, full: Full) -> Response {
        let (limit, whose, flag) = match full {
            Full::Port => (self.limits.connections, "", "--max-connections"),
            Full::Peer => {
                let limit = self.limits.per_peer;
                (limit, " of this address", "--max-connections-per-peer")
            }
        };
        let message = format!(
            "The server serves {limit} connections{whose} already ({flag}); try again later."
        );
        match &self.protocol {
            Protocol::Http { refusal, .. } => refusal(message),
            Protocol::Grpc { .. } => Status::unavailable(message).into_http::<Body>(),
        }
    }

    /// Returns true if a request does not keep its connection's place.
    pub(crate) fn is_endless(&self, path: &str) -> bool {
        matches!(self.protocol, Protocol::Grpc { .. }) && ENDLESS.contains(&path)
    }

    /// Returns true if a request is answered even without a place.
    pub(crate) fn is_probe(&self, path: &str) -> bool {
        match &self.protocol {
            Protocol::Http { probes, .. } => probes.contains(&path),
            Protocol::Grpc { .. } => path == "/grpc.health.v1.Health/Check",
        }
    }
}

impl Budgets {
    fn new(all: Arc<Budget>) -> Self {
        Self {
            without_key: all.without_key(),
            all,
        }
    }

    /// Returns the budgets for the connections of `peer`.
    pub(crate) fn of_peer(&self, peer: Peer) -> Self {
        Self {
            all: self.all.of_peer(peer),
            without_key: self.without_key.of_peer(peer),
        }
    }

    /// Returns the budget for bytes whose request is not known yet.
    pub(crate) fn all(&self) -> &Arc<Budget> {
        &self.all
    }

    /// Returns the budget for a request.
    pub(crate) fn of_path(&self, path: &str) -> &Arc<Budget> {
        let is_open = WITHOUT_KEY.iter().any(|service| path.starts_with(service));
        match is_open {
            true => &self.without_key,
            false => &self.all,
        }
    }
}

/// Returns the number of files that this process may have open.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    limit.unwrap_or(usize::MAX)
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
