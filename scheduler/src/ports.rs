//! The scheduler's ports for those who come over TCP.

use std::sync::Arc;

use lockstep_ports::{Budget, Port, Protocol, Tls};
use lockstep_proto::pb::lockstep::PortLoad;
use lockstep_types::EngineConfig;

/// The ports, where they are open.
pub struct Ports {
    /// SGLang's gateway.
    pub sglang: Option<Arc<Port>>,
    /// The bytes that its requests hold.
    pub budget: Arc<Budget>,
    /// Workers of other nodes.
    pub nodes: Option<Arc<Port>>,
}

impl Ports {
    /// The configured ports. Clients' speak TLS where there is `tls`, nodes' where there
    /// is `dist_tls`.
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

    /// What became of their connections.
    pub fn loads(&self) -> Vec<PortLoad> {
        let open = [&self.sglang, &self.nodes].into_iter().flatten();
        open.map(|port| port.report().into()).collect()
    }
}
