//! What the options ask of the machine.

use lockstep_config::ServeArgs;
use lockstep_tp_worker::worker::WorkerLimits;
use lockstep_types::{Algorithms, DeviceKind, EngineConfig};

use crate::settings::Settings;

/// What a server takes of the machine; where its configuration is not known, what its options
/// say by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Asked {
    /// Why there is no such server, or why that can't be said.
    pub(super) refused: Option<String>,
    /// Threads that compute on this node.
    pub(super) threads: Option<usize>,
    /// Bytes of `/dev/shm` through which this node's ranks exchange their parts.
    pub(super) shared_bytes: u64,
    /// Ranks have GPUs.
    pub(super) gpus: bool,
    /// Connections of all ports.
    pub(super) connections: Option<u64>,
    /// Option, host and port of everything that listens.
    pub(super) ports: Vec<(&'static str, String, u16)>,
}

impl Asked {
    /// What `lockstep serve` with these options asks for. Models by name are not loaded
    /// for it.
    pub(super) fn of(args: &ServeArgs, algorithms: &Algorithms) -> Self {
        let model = args.model.model_path.as_deref();
        if let Some(name) = model.filter(|path| !path.is_dir()) {
            let refused = format!("{} is no folder here, and was not loaded", name.display());
            return Self::unknown(args, refused);
        }
        match Settings::prepare(args, algorithms) {
            Ok(settings) => Self::resolved(&settings.file.engine, settings.file.node.node_rank),
            Err(error) => Self::unknown(args, error.to_string()),
        }
    }

    fn resolved(engine: &EngineConfig, node_rank: usize) -> Self {
        let parallel = &engine.parallel;
        let ranks = engine.ranks_per_node();
        let gpus = engine.device.kind != DeviceKind::Cpu;
        let shares = ranks > 1 && parallel.nnodes == 1;
        let elements = WorkerLimits::new(engine).exchange_elements(engine) as u64;
        let server = &engine.server;
        let mut ports = Vec::new();
        if node_rank == 0 {
            let on = |option, port: Option<u16>| Some((option, server.host.clone(), port?));
            ports.extend(on("--port", Some(server.port)));
            ports.extend(on("--grpc-port", server.grpc_port));
            ports.extend(on("--sglang-grpc-port", server.sglang_grpc_port));
            let nodes = parallel.dist_init_addr.rsplit_once(':');
            if let Some((host, port)) = nodes.filter(|_| parallel.nnodes > 1)
                && let Ok(port) = port.parse()
            {
                ports.push(("--dist-init-addr", host.to_owned(), port));
            }
        }
        Self {
            refused: None,
            threads: (!gpus).then_some(ranks * parallel.threads_per_rank),
            // Two buffers of each rank.
            shared_bytes: if shares {
                elements * 8 * ranks as u64
            } else {
                0
            },
            gpus,
            connections: Some(server.limits.connections.per_port as u64 * ports.len() as u64),
            ports,
        }
    }

    fn unknown(args: &ServeArgs, refused: String) -> Self {
        let server = &args.server;
        let host = server.host.clone().unwrap_or_else(|| "127.0.0.1".into());
        let port = server.port.unwrap_or(8000);
        let grpc = server.grpc_port.unwrap_or(port.saturating_add(1));
        let all = [
            ("--port", port),
            ("--grpc-port", grpc),
            ("--sglang-grpc-port", server.sglang_grpc_port.unwrap_or(0)),
        ];
        let open = all.into_iter().filter(|(_, port)| *port > 0);
        Self {
            refused: Some(refused),
            ports: open
                .map(|(option, port)| (option, host.clone(), port))
                .collect(),
            ..Self::default()
        }
    }
}
