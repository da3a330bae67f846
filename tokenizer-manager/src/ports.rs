//! The public ports of this process.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use lockstep_ports::{Budget, Port, PortReport, Protocol, Tls};
use lockstep_types::{
    LimitsConfig,
    request::{ErrorKind, RequestError},
};

use crate::error::ApiError;

/// Bytes that hyper accepts beyond the header limit. So the server's own check, which
/// answers with an error object, comes first.
const HEADER_SLACK: u32 = 64 * 1024;
/// Paths that are answered even if no connection is free, since operators look at them
/// then.
const PROBES: &[&str] = &["/health", "/ping", "/metrics"];

/// The public ports, for clients.
#[derive(Debug, Clone)]
pub struct Ports {
    /// OpenAI-compatible HTTP.
    pub http: Arc<Port>,
    /// `lockstep.v1.Inference`.
    pub grpc: Arc<Port>,
    /// Budget of the bytes that requests on these ports hold.
    pub budget: Arc<Budget>,
}

impl Ports {
    /// Makes ports with these limits; with `tls`, the ports speak TLS.
    pub fn new(limits: &LimitsConfig, tls: Option<&Arc<Tls>>) -> Self {
        let http = Protocol::Http {
            head_bytes: limits.header_bytes.saturating_add(HEADER_SLACK),
            refusal,
            over_budget: |over| ApiError::from(over).into_response(),
            probes: PROBES,
        };
        let grpc = Protocol::Grpc {
            head_bytes: limits.header_bytes,
        };
        let budget = Budget::new(limits.memory_bytes);
        let port = |name, protocol| {
            let (budget, tls) = (budget.clone(), tls.cloned());
            Port::public(name, protocol, &limits.connections, budget, tls)
        };
        Self {
            http: port("http", http),
            grpc: port("grpc", grpc),
            budget: budget.clone(),
        }
    }

    /// Returns the connection counts of both ports.
    pub fn reports(&self) -> [PortReport; 2] {
        [self.http.report(), self.grpc.report()]
    }
}

fn refusal(message: String) -> Response {
    let mut error = RequestError::new(ErrorKind::Unavailable, message);
    error.retry_after_s = Some(1);
    ApiError::from(error).into_response()
}
