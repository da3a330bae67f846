//! Life of the tokenizer-manager process, from its context to its end.

use std::{io, sync::Arc, time::Duration};

use lockstep_ports::{Tls, TlsError};
use lockstep_process::{ControlLink, Lifecycle, Role, RoleContext};
use lockstep_text::LoadError;
use tokio::{net::TcpListener, runtime};
use tokio_util::sync::CancellationToken;

use crate::{
    app::{App, Figures, now},
    auth::Keys,
    constraints::Constraints,
    gate::{Gate, GateState},
    grpc, http,
    metrics::{Metrics, UPKEEP},
    ports::Ports,
    scheduler_client::{LinkOptions, LinkState, SchedulerClient},
    text::Text,
};

/// Time after a halt in which connections may take their last bytes.
const FLUSH: Duration = Duration::from_millis(700);
/// Maximum time for which work on other threads may delay the end of the process.
const THREADS: Duration = Duration::from_millis(200);
/// Time in which connections may close after the last request of a drain.
const CLOSE: Duration = Duration::from_secs(5);

/// Reason why the process could not serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The process was started in another role.
    #[error("this is the tokenizer-manager's entry, but the role is {0}")]
    Role(Role),
    /// The tokenizer or the chat template cannot be used.
    #[error("the model's tokenizer cannot be used")]
    Text(#[from] LoadError),
    /// A public port cannot be opened.
    #[error("cannot listen on {address}; choose another --host or --port")]
    Listen {
        /// The requested address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// A certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The async runtime could not be started.
    #[error("the runtime could not be started")]
    Runtime(#[source] io::Error),
    /// The scheduler was started with another configuration.
    #[error("{0}")]
    Incompatible(String),
    /// Clients must send a key, but this node has none.
    #[error("the configuration asks clients for an API key but holds none; set --api-key")]
    NoKey,
    /// The metrics exporter refused its constants.
    #[error("metrics cannot be recorded")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// The gRPC server ended.
    #[error("the gRPC server failed: {0}")]
    Grpc(String),
}

/// Runs a tokenizer-manager until it is drained or halted.
///
/// # Errors
/// See [`RunError`].
pub fn run(context: RoleContext) -> Result<(), RunError> {
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get().min(4));
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("front")
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let result = runtime.block_on(serve(context));
    runtime.shutdown_timeout(THREADS);
    result
}

/// The listeners of one process.
#[derive(Debug)]
pub struct Listeners {
    /// OpenAI-compatible HTTP.
    pub http: TcpListener,
    /// `lockstep.v1.Inference`.
    pub grpc: Option<TcpListener>,
}

impl Listeners {
    /// Opens the configured ports.
    ///
    /// # Errors
    /// [`RunError::Listen`] names the address.
    pub fn open(context: &RoleContext) -> Result<Self, RunError> {
        let server = &context.engine.server;
        let shared = context.engine.parallel.tokenizer_managers > 1;
        let open = |port: u16| {
            lockstep_ports::listen((server.host.as_str(), port), shared).map_err(|source| {
                RunError::Listen {
                    address: format!("{}:{port}", server.host),
                    source,
                }
            })
        };
        Ok(Self {
            http: open(server.port)?,
            grpc: server.grpc_port.map(open).transpose()?,
        })
    }
}

async fn serve(context: RoleContext) -> Result<(), RunError> {
    let listeners = Listeners::open(&context)?;
    serve_on(context, listeners).await
}

/// Serves on open listeners until the context's lifecycle ends it.
///
/// # Errors
/// See [`RunError`].
pub async fn serve_on(context: RoleContext, listeners: Listeners) -> Result<(), RunError> {
    let lifecycle = context.link.lifecycle().clone();
    let (app, link) = build(&context, lifecycle.halt.clone())?;
    let link = tokio::spawn(link);
    let upkeep = tokio::spawn(upkeep(app.clone(), context.link.clone()));
    let launcher = context.link.clone();
    let pulse = tokio::spawn(async move { launcher.answer_pings().await });
    let heap = tokio::spawn(lockstep_process::heap::give_back());
    let close = CancellationToken::new();
    let address = listeners.http.local_addr().ok();
    let mut servers = tokio::spawn(servers(app.clone(), listeners, close.clone()));
    let served = tokio::select! {
        served = run_until_shutdown(&app, &context, &lifecycle, address) => served,
        ended = &mut servers => Err(RunError::Grpc(match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => "it ended by itself".to_owned(),
            Err(error) => error.to_string(),
        })),
    };
    app.gate.close(match lifecycle.halt.is_cancelled() {
        true => GateState::Halted,
        false => GateState::Draining,
    });
    close.cancel();
    if !servers.is_finished() {
        let patience = async {
            tokio::select! {
                () = tokio::time::sleep(CLOSE) => {}
                () = async { lifecycle.halt.cancelled().await; tokio::time::sleep(FLUSH).await } => {}
            }
        };
        tokio::select! {
            _ = &mut servers => {}
            () = patience => servers.abort(),
        }
    }
    upkeep.abort();
    pulse.abort();
    heap.abort();
    link.abort();
    served
}

fn build(
    context: &RoleContext,
    halt: CancellationToken,
) -> Result<(Arc<App>, impl Future<Output = ()> + Send + use<>), RunError> {
    let Role::TokenizerManager(index) = context.role else {
        return Err(RunError::Role(context.role));
    };
    let config = context.engine.clone();
    let keys = Keys {
        client: context.node.api_key.clone(),
        operator: context.node.admin_api_key.clone(),
    };
    if config.server.api_key_required && keys.client.is_none() {
        return Err(RunError::NoKey);
    }
    let tls = context.node.tls.as_ref().map(Tls::load).transpose()?;
    let text = Text::load(&config.model.path, &config.server.answers)?;
    tracing::info!(
        tool_call_parser = text.answers.tools.map(|format| format.names[0]),
        reasoning_parser = text.answers.reasoning.map(|format| format.names[0]),
        "answers are parsed"
    );
    let figures = Figures {
        index,
        started: now(),
        gate: Gate::default(),
        ports: Ports::new(&config.server.limits, tls.as_ref()),
        traces: context.traces.clone(),
        metrics: Metrics::new(index)?,
    };
    let own = figures.clone();
    let (scheduler, link) = SchedulerClient::new(
        LinkOptions {
            socket: context.node.frontend_socket(),
            config_hash: context.config_hash.clone(),
            name: format!("tokenizer-manager-{index}"),
            capacity: config.schedule.max_running_requests + config.schedule.max_queued_requests,
            budget: figures.ports.budget.clone(),
            outlook: context.link.outlook().clone(),
        },
        Arc::new(move |metrics| own.now(metrics)),
        halt,
    );
    let app = App {
        constraints: Constraints::new(
            &text.tokenizer,
            &config.model,
            figures.metrics.constraints(),
        ),
        config_hash: context.config_hash.clone(),
        ports: figures.ports.clone(),
        config,
        index,
        keys,
        weight_update_dir: context.node.weight_update_dir.clone(),
        lora_dir: context.node.lora_dir.clone(),
        text,
        scheduler,
        gate: figures.gate.clone(),
        metrics: figures.metrics.clone(),
        traces: context.traces.clone(),
        is_encrypted: tls.is_some(),
        figures,
        shared_figures: Default::default(),
    };
    Ok((Arc::new(app), link))
}

/// Reports readiness, then waits until the process is drained or halted, or the
/// scheduler turns out incompatible.
async fn run_until_shutdown(
    app: &App,
    context: &RoleContext,
    lifecycle: &Lifecycle,
    address: Option<std::net::SocketAddr>,
) -> Result<(), RunError> {
    let mut state = app.scheduler.state();
    let ended = async {
        tokio::select! {
            () = lifecycle.halt.cancelled() => {}
            () = lifecycle.drain.cancelled() => {}
        }
    };
    tokio::pin!(ended);
    let mut reported = false;
    loop {
        match &*state.borrow_and_update() {
            LinkState::Ready(_) if !reported => {
                reported = true;
                let address = address.map_or_else(String::new, |address| address.to_string());
                tracing::info!(address, "serving");
                let scheme = context.node.tls.as_ref().map_or("http", |_| "https");
                context
                    .link
                    .ready(&format!("serving {} on {scheme}://{address}", app.model()));
            }
            LinkState::Incompatible(reason) => return Err(RunError::Incompatible(reason.clone())),
            _ => {}
        }
        tokio::select! {
            () = &mut ended => break,
            () = lifecycle.leave.cancelled(), if app.gate.state() == GateState::Open => {
                tracing::info!("clients are told to go elsewhere, and served meanwhile");
                app.gate.close(GateState::Leaving);
            }
            changed = state.changed() => if changed.is_err() { break },
        }
    }
    if lifecycle.halt.is_cancelled() {
        app.gate.close(GateState::Halted);
        return Ok(());
    }
    tracing::info!(inside = app.gate.inside(), "draining");
    app.gate.close(GateState::Draining);
    tokio::select! {
        () = app.gate.empty() => tracing::info!("drained"),
        () = lifecycle.halt.cancelled() => app.gate.close(GateState::Halted),
    }
    Ok(())
}

async fn servers(
    app: Arc<App>,
    listeners: Listeners,
    close: CancellationToken,
) -> Result<(), String> {
    let web = async {
        let router = http::router(app.clone());
        let port = app.ports.http.clone();
        port.serve(listeners.http, router, close.clone()).await;
        Ok(())
    };
    let grpc = async {
        match listeners.grpc {
            Some(listener) => grpc::serve(app.clone(), listener, close.clone())
                .await
                .map_err(|error| error.to_string()),
            None => Ok(()),
        }
    };
    futures::future::try_join(web, grpc).await.map(|_| ())
}

async fn upkeep(app: Arc<App>, link: ControlLink) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        app.metrics.note_lost_log_lines(link.lost_log_lines());
        app.metrics.upkeep();
    }
}
