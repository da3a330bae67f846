//! Sockets, servers and the runtime around the engine loop.

use std::{future::Future, sync::Arc, time::Duration};

use futures::FutureExt as _;
use lockstep_ports::{Port, Tls};
use lockstep_process::RoleContext;
use lockstep_proto::limits::INTERNAL_CONCURRENT_STREAMS;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::{Routes, interceptor::InterceptedService},
    transport::Server,
};

use crate::{
    bearer::RequireBearer,
    engine::Engine,
    error::RunError,
    frontend::FrontendService,
    gateway::Gateway,
    inbox::{Commands, WorkerEvents, inbox},
    net::{listen_tcp, listen_unix},
    ports::Ports,
    sglang,
};

/// Time that open streams have to take their last messages.
const FLUSH_LIMIT: Duration = Duration::from_millis(800);

/// Runs the scheduler until it is drained, halted or its group fails.
///
/// # Errors
/// The reason of the end, unless the scheduler was drained.
pub fn run(ctx: RoleContext) -> Result<(), RunError> {
    // There is one thread. The engine loop and its gRPC streams hand over to each other without
    // waking another core, and such wake-ups make up a step's latency.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| RunError::Io {
            what: "starting the runtime".to_owned(),
            source,
        })?;
    runtime.block_on(serve(Arc::new(ctx)))
}

async fn serve(ctx: Arc<RoleContext>) -> Result<(), RunError> {
    let (commands, workers, inbox) = inbox();
    let engine = Engine::new(&ctx, inbox)?;
    let stop = CancellationToken::new();
    let mut servers = JoinSet::new();
    let tls = ctx.node.tls.as_ref().map(Tls::load).transpose()?;
    let dist_tls = ctx.node.dist_tls.as_ref().map(Tls::of_nodes).transpose()?;
    let ports = Arc::new(Ports::new(&ctx.engine, tls, dist_tls));
    servers.spawn(frontend_server(&ctx, &commands, &ports, &stop)?);
    servers.spawn(worker_server(&ctx, &workers, &stop)?);
    if let Some(port) = ports.nodes.clone() {
        let server = remote_worker_server(&ctx, port, &workers, &stop)?;
        servers.spawn(server.map(Ok));
    }
    if let Some(port) = ports.sglang.clone() {
        let port = (port, ports.budget.clone());
        let (health, commands) = (engine.health(), commands.clone());
        let server = sglang::server(ctx.clone(), port, commands, health, stop.clone()).await?;
        servers.spawn(server.map(Ok));
    }
    drop((commands, workers));

    let engine = engine.run();
    tokio::pin!(engine);
    let outcome = tokio::select! {
        outcome = &mut engine => outcome,
        Some(ended) = servers.join_next() => Err(match ended {
            Ok(Err(error)) => RunError::Grpc(error),
            _ => RunError::Halted,
        }),
    };
    stop.cancel();
    // The engine is gone, and with it the source of every stream. Only the last messages have
    // still to leave.
    if tokio::time::timeout(FLUSH_LIMIT, async {
        while servers.join_next().await.is_some() {}
    })
    .await
    .is_err()
    {
        tracing::debug!("a peer did not take its last messages");
    }
    outcome
}

type Serving = Result<(), tonic::transport::Error>;

fn internal_server() -> Server {
    Server::builder()
        .max_concurrent_streams(INTERNAL_CONCURRENT_STREAMS)
        .tcp_nodelay(true)
}

fn frontend_server(
    ctx: &RoleContext,
    commands: &Commands,
    ports: &Arc<Ports>,
    stop: &CancellationToken,
) -> Result<impl Future<Output = Serving> + Send + use<>, RunError> {
    let incoming = listen_unix(&ctx.node.frontend_socket())?;
    let service =
        FrontendService::service(commands.clone(), ports.clone(), ctx.config_hash.clone());
    let stop = stop.clone().cancelled_owned();
    Ok(internal_server()
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stop))
}

fn worker_server(
    ctx: &RoleContext,
    workers: &WorkerEvents,
    stop: &CancellationToken,
) -> Result<impl Future<Output = Serving> + Send + use<>, RunError> {
    let incoming = listen_unix(&ctx.node.workers_socket())?;
    let service = Gateway::service(workers.clone(), ctx.config_hash.clone());
    let stop = stop.clone().cancelled_owned();
    Ok(internal_server()
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stop))
}

/// Serves workers of other nodes, which come over TCP and must show the shared secret.
fn remote_worker_server(
    ctx: &RoleContext,
    port: Arc<Port>,
    workers: &WorkerEvents,
    stop: &CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, RunError> {
    let listener = listen_tcp(&ctx.engine.parallel.dist_init_addr)?;
    let secret = RequireBearer::secret(ctx.node.dist_secret.as_deref());
    let service = Gateway::service(workers.clone(), ctx.config_hash.clone());
    let service = InterceptedService::new(service, secret);
    let routes = Routes::new(service).prepare().into_axum_router();
    Ok(port.serve(listener, routes, stop.clone()))
}
