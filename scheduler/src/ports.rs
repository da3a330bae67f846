//! The scheduler's TCP ports.

use std::sync::Arc;

use lockstep_ports::{Budget, Port, Protocol, Tls};
use lockstep_proto::pb::lockstep::PortLoad;
use lockstep_types::EngineConfig;

/// The ports that are configured.
pub struct Ports {
    /// Port for SGLang's gateway.
    pub sglang: Option<Arc<Port>>,
    /// Budget for the bytes of the gateway's requests.
    pub budget: Arc<Budget>,
    /// Port for workers of other nodes.
    pub nodes: Option<Arc<Port>>,
}

impl Ports {
    /// Makes the configured ports. The port for clients speaks TLS if there is `tls`, the port
    /// for nodes if there is `dist_tls`.
    pub fn new(config: &EngineConfig, tls: Option<Arc<Tls>>, dist_tls: Option<Arc<Tls>>) -> Self {
        let limits = &config.server.limits;
        let budget = Budget::new(limits.memory_bytes);
        let sglang = config.server.sglang_grpc_port.map(|_| {
            let protocol = Protocol::Grpc {
                head_bytes: limits.header_bytes,
            };
            Port::public("sglang", protocol, &limits.connections, budget.clone(), tls)
        });
        let several = config.parallel.nnodes > 1;
        let nodes = several.then(|| {
            Port::nodes(
                "nodes",
                config.parallel.tp_size,
                &limits.connections,
                dist_tls,
            )
        });
        Self {
            sglang,
            budget,
            nodes,
        }
    }

    /// Returns the counts of the ports' connections.
    pub fn loads(&self) -> Vec<PortLoad> {
        let open = [&self.sglang, &self.nodes].into_iter().flatten();
        open.map(|port| port.report().into()).collect()
    }
}
