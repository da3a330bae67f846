//! Roles, and how a process takes one on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockstep_config::ConfigFile;
use lockstep_traces::{TraceError, Traces};
use lockstep_types::{EngineConfig, NodeConfig};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::{ControlLink, exit, logging};

/// Time that the last spans of an ending role get to reach the collector.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Role of a process of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// HTTP and gRPC front, by number on this node.
    TokenizerManager(usize),
    /// The scheduler.
    Scheduler,
    /// A tensor-parallel rank, numbered over all nodes.
    Worker(usize),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenizerManager(index) => write!(f, "tokenizer-manager {index}"),
            Self::Scheduler => f.write_str("scheduler"),
            Self::Worker(rank) => write!(f, "worker {rank}"),
        }
    }
}

/// The reason why a process could not take on its role.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// The configuration file is missing or of another version.
    #[error(transparent)]
    Config(#[from] lockstep_config::ConfigFileError),
    /// Nobody listens on the control socket.
    #[error("no launcher listens on {}: roles are started by `lockstep serve`", socket.display())]
    NoLauncher {
        /// Path of the control socket.
        socket: PathBuf,
        /// Error of the connection.
        source: std::io::Error,
    },
    /// The launcher died before this process could notice it.
    #[error("the launcher that started this process is gone")]
    Orphan,
    /// The control link could not be set up.
    #[error("the control link could not be set up: {0}")]
    Link(std::io::Error),
    /// Traces can't be exported.
    #[error(transparent)]
    Traces(#[from] TraceError),
}

/// Everything that a role gets.
#[derive(Clone)]
pub struct RoleContext {
    /// Settings that all processes share.
    pub engine: Arc<EngineConfig>,
    /// Settings of this node.
    pub node: Arc<NodeConfig>,
    /// [`EngineConfig::hash`], for handshakes.
    pub config_hash: String,
    /// This process's role.
    pub role: Role,
    /// The connection to the launcher.
    pub link: ControlLink,
    /// Makes spans of requests. `None` if no request is traced, and in workers, since the
    /// scheduler knows their part.
    pub traces: Option<Traces>,
}

impl RoleContext {
    /// Takes on `role` in this process: logs, death signal, configuration and control link, in
    /// this order.
    ///
    /// # Errors
    /// See [`RoleError`].
    pub fn enter(run_dir: &Path, role: Role) -> Result<Self, RoleError> {
        let ConfigFile {
            engine, node, hash, ..
        } = ConfigFile::read(run_dir)?;
        logging::init(&role.to_string(), &node.log, node.log_json);
        logging::log_panics();
        // A tokenizer-manager outlives the launcher for the time that it needs to end its
        // clients' requests with an error. The closed control link ends it. A stopped process
        // must be continued for that.
        let signal = match role {
            Role::TokenizerManager(_) => Signal::CONT,
            Role::Scheduler | Role::Worker(_) => Signal::KILL,
        };
        set_parent_process_death_signal(Some(signal))
            .map_err(|error| RoleError::Link(error.into()))?;
        let link = ControlLink::connect(&node.control_socket(), role)?;
        if !matches!(role, Role::TokenizerManager(_)) {
            end_on_panic(link.clone());
        }
        let traces = traces(role, &node)?;
        Ok(Self {
            engine: engine.into(),
            node: node.into(),
            config_hash: hash,
            role,
            link,
            traces,
        })
    }

    /// Ends the role with its result: reports a failure to the launcher and returns the exit
    /// code of the process.
    pub fn leave<E: std::error::Error>(&self, result: Result<(), E>) -> u8 {
        let lifecycle = self.link.lifecycle();
        // A failure is reported at once, without the wait for spans.
        let ends_well = result.is_ok() && !lifecycle.halt.is_cancelled();
        if let Some(traces) = self.traces.as_ref().filter(|_| ends_well) {
            traces.finish(LAST_SPANS);
        }
        let code = match result {
            Ok(()) => exit::OK,
            Err(_) if lifecycle.halt.is_cancelled() => exit::LAUNCHER_GONE,
            Err(error) => {
                // The launcher prints it, once.
                self.link.failed(&describe(&error));
                exit::START_FAILED
            }
        };
        self.link.close(Duration::from_secs(1));
        logging::finish();
        code
    }
}

/// Begins to export the role's spans, if it has some and requests are traced.
fn traces(role: Role, node: &NodeConfig) -> Result<Option<Traces>, TraceError> {
    let service = match role {
        Role::TokenizerManager(_) => "tokenizer-manager",
        Role::Scheduler => "scheduler",
        Role::Worker(_) => return Ok(None),
    };
    let traces = node.traces.as_ref();
    traces
        .map(|config| Traces::start(config, service, &role.to_string()))
        .transpose()
}

/// Ends the process when any of its threads panics: a scheduler or a rank with a missing part
/// would leave the others waiting. A tokenizer-manager answers one request with an error and
/// goes on.
fn end_on_panic(link: ControlLink) {
    std::panic::set_hook(Box::new(move |panic| {
        link.failed(&format!("a bug in this program: {panic}"));
        link.close(Duration::from_millis(500));
        exit::exit_now(exit::PANIC);
    }));
}

/// An error and its causes on one line, each only once.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
