//! Resources that the options ask of the machine.

use lockstep_config::ServeArgs;
use lockstep_devices::Finding;
use lockstep_tp_worker::worker::WorkerLimits;
use lockstep_types::{Algorithms, DeviceKind, EngineConfig};

use super::model;
use crate::ports::Ports;
use crate::serve::kv_cache;
use crate::settings::Settings;

/// Resources that a server takes of the machine. If its configuration is not known, only the
/// values that its options give directly.
#[derive(Debug, Default)]
pub(super) struct Requirements {
    /// The reason why there is no such server, or why its configuration is not known.
    pub(super) refused: Option<String>,
    /// Threads that compute on this node.
    pub(super) threads: Option<usize>,
    /// The model, its weights and the memory that a rank takes.
    pub(super) model: Vec<Finding>,
    /// Sizes of the KV cache.
    pub(super) kv: Option<String>,
    /// Bytes of `/dev/shm` through which this node's ranks exchange their parts.
    pub(super) shared_bytes: u64,
    /// True if ranks have GPUs.
    pub(super) gpus: bool,
    /// Connections of all ports together.
    pub(super) connections: Option<u64>,
    /// Public ports.
    pub(super) ports: Ports,
    /// Host and port at which other nodes register.
    pub(super) nodes: Option<(String, u16)>,
}

impl Requirements {
    /// The resources of `lockstep serve` with these options. Models that are given by name
    /// are not loaded for this.
    pub(super) fn of(args: &ServeArgs, algorithms: &Algorithms) -> Self {
        let model = args.model.model_path.as_deref();
        if let Some(name) = model.filter(|path| !lockstep_hub::is_here(path)) {
            let refused = format!(
                "{} is no folder and no GGUF file here, and was not loaded",
                name.display()
            );
            return Self::unknown(args, refused);
        }
        match Settings::of_server(args, algorithms) {
            Ok(settings) => {
                let (engine, node) = (&settings.file.engine, &settings.file.node);
                Self::resolved(engine, node.node_rank, args.server.grpc_port.is_none())
            }
            Err(error) => Self::unknown(args, error.to_string()),
        }
    }

    fn resolved(engine: &EngineConfig, node_rank: usize, grpc_follows: bool) -> Self {
        let parallel = &engine.parallel;
        let ranks = engine.ranks_per_node();
        let gpus = engine.device.kind != DeviceKind::Cpu;
        let shares = ranks > 1 && parallel.nnodes == 1;
        let elements = WorkerLimits::new(engine).exchange_elements(engine) as u64;
        let server = &engine.server;
        let (mut ports, mut nodes) = (Ports::default(), None);
        if node_rank == 0 {
            ports = Ports::of(server, grpc_follows);
            let address = parallel.dist_init_addr.rsplit_once(':');
            nodes = address
                .filter(|_| parallel.nnodes > 1)
                .and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        }
        let listening = ports.all().len() + usize::from(nodes.is_some());
        Self {
            refused: None,
            model: model::findings(engine),
            kv: Some(kv_cache(engine)),
            threads: (!gpus).then_some(ranks * parallel.threads_per_rank),
            // Two buffers of each rank.
            shared_bytes: if shares {
                elements * 8 * ranks as u64
            } else {
                0
            },
            gpus,
            connections: Some(server.limits.connections.per_port as u64 * listening as u64),
            ports,
            nodes,
        }
    }

    fn unknown(args: &ServeArgs, refused: String) -> Self {
        let server = &args.server;
        let host = server.host.as_deref().unwrap_or("127.0.0.1");
        let port = server.port.unwrap_or(8000);
        let grpc = server.grpc_port.unwrap_or(port.saturating_add(1));
        let open = [port, grpc, server.sglang_grpc_port.unwrap_or(0)];
        let open = open.map(|port| Some(port).filter(|port| *port > 0));
        Self {
            refused: Some(refused),
            ports: Ports::new(host, open, server.grpc_port.is_none()),
            ..Self::default()
        }
    }
}
