//! One port: its name, what it speaks, and its limits.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use lockstep_types::ConnectionLimits;
use rustix::process::{Resource, getrlimit};
use tonic::Status;

use crate::{
    budget::{Budget, OverBudget},
    peer::Peer,
    places::{Full, PROBES, Places, Wait},
    report::PortReport,
    tls::Tls,
};

/// Peers of public ports are asked after so long whether they are still there,
/// and get as long again to say so.
const ASK_CLIENTS: Duration = Duration::from_secs(20);
/// The same for nodes, whose work waits for each other.
const ASK_NODES: Duration = Duration::from_secs(2);
const NODES_ANSWER: Duration = Duration::from_secs(3);
/// A body that brings nothing for so long ends where others find no room, whatever it
/// has brought before.
const SILENCE: Duration = Duration::from_secs(20);
/// Places on a port for nodes, beside those of the ranks themselves.
const SPARE_FOR_NODES: usize = 64;
/// Descriptors that a process needs for other things than connections.
const OTHER_DESCRIPTORS: usize = 64;
/// Ports of one process, at the most; they share its descriptors.
const PORTS: usize = 2;
/// Calls at once on a node's connection; it needs one.
const STREAMS_OF_NODES: u32 = 64;
/// Bytes of their heads, as hyper has them by default.
const HEAD_OF_NODES: u32 = 16 << 10;

/// Calls that last as long as their client likes, and need no key.
const ENDLESS: [&str; 3] = [
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Services that need no key, also where there is one.
const WITHOUT_KEY: [&str; 2] = ["/grpc.health.", "/grpc.reflection."];

/// What is spoken on a port.
#[derive(Clone)]
pub enum Protocol {
    /// HTTP/1.1 and HTTP/2.
    Http {
        /// Bytes of a request's head that hyper reads; the routes check less.
        head_bytes: u32,
        /// What a connection without a place is answered, from a sentence that
        /// names the limit.
        refusal: fn(String) -> Response,
        /// What a request is answered that is over the budget.
        over_budget: fn(OverBudget) -> Response,
        /// Paths that are answered without a place too.
        probes: &'static [&'static str],
    },
    /// gRPC, over HTTP/2 alone.
    Grpc {
        /// Bytes of a call's head.
        head_bytes: u32,
    },
}

/// The limits of a port, as they are used.
#[derive(Debug, Clone)]
pub(crate) struct PortLimits {
    pub(crate) connections: usize,
    pub(crate) per_peer: usize,
    pub(crate) streams: u32,
    first_bytes: Duration,
    head: Duration,
    request: Duration,
    /// An answer's next part is to be taken within this.
    pub(crate) send: Duration,
    pub(crate) body: Option<BodyLimits>,
    /// An HTTP/2 peer is asked after so long whether it is there,
    pub(crate) ask: Duration,
    /// and has to answer within this.
    pub(crate) answer: Duration,
}

/// How fast a request's body must come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) whole: Duration,
    /// Bytes per second, 0 for any.
    pub(crate) rate: u64,
    /// For so long it may bring nothing where others find no room.
    pub(crate) silence: Duration,
}

impl PortLimits {
    /// First bytes in an hour, a head in two, a request in four; an answer's
    /// part is taken in eight.
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
            ask: ASK_CLIENTS,
            answer: ASK_CLIENTS,
        }
    }

    /// Serves `most` connections alone, of which a peer keeps its share.
    fn shrink(&mut self, most: usize) {
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

/// A port that strangers reach. See [`Port::serve`].
pub struct Port {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    pub(crate) limits: PortLimits,
    pub(crate) places: Arc<Places>,
    /// `None` where nobody can send much before showing a secret.
    pub(crate) budgets: Option<Budgets>,
    /// `None` where no TLS is spoken.
    pub(crate) tls: Option<Arc<Tls>>,
}

/// What requests draw on: those of a port, or of one of its connections.
#[derive(Clone)]
pub(crate) struct Budgets {
    all: Arc<Budget>,
    without_key: Arc<Budget>,
}

impl Port {
    /// A port for clients, whose requests share `budget` with those of the
    /// process's other ports, and which speaks TLS where there is `tls`.
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

    /// A port for nodes with `ranks` in all, which show a secret, and certificates where
    /// there is `tls`: what they send then takes as long as they live.
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

    /// A port for HTTP.
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

    /// Its state and counts.
    pub fn report(&self) -> PortReport {
        self.places.report(self.name)
    }

    /// What a request is answered for which there is no place.
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

    /// Whether a request is no work that would keep its connection's place.
    pub(crate) fn is_endless(&self, path: &str) -> bool {
        matches!(self.protocol, Protocol::Grpc { .. }) && ENDLESS.contains(&path)
    }

    /// Whether a request is answered without a place.
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

    /// For the connections of `peer`.
    pub(crate) fn of_peer(&self, peer: Peer) -> Self {
        Self {
            all: self.all.of_peer(peer),
            without_key: self.without_key.of_peer(peer),
        }
    }

    /// For what was not told apart yet.
    pub(crate) fn all(&self) -> &Arc<Budget> {
        &self.all
    }

    /// For a request.
    pub(crate) fn of_path(&self, path: &str) -> &Arc<Budget> {
        let is_open = WITHOUT_KEY.iter().any(|service| path.starts_with(service));
        match is_open {
            true => &self.without_key,
            false => &self.all,
        }
    }
}

/// Files that this process may have open.
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
