//! Why a command ended without doing what it was asked.

use std::path::PathBuf;

use lockstep_config::ConfigFileError;
use lockstep_process::exit;
use lockstep_types::ConfigError;

/// An error for the person at the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// Options, model or machine do not allow it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration could not be handed to the roles.
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    /// A folder for sockets could not be made.
    #[error("{}: {source}. Give another parent folder with --run-dir.", path.display())]
    RunDir {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A socket's path would be longer than the system allows.
    #[error("{} is too long for a socket: at most {limit} bytes. Give a shorter --run-dir.",
            path.display())]
    SocketPath {
        /// The socket.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// Nothing can listen on a public port.
    #[error("{option} {address}: {source}. {remedy}.")]
    Port {
        /// The option.
        option: &'static str,
        /// Host and port.
        address: String,
        /// What the system said.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// A child could not be started or watched.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine did not come up.
    #[error("the engine could not start: {0}")]
    Start(String),
    /// A tool failed.
    #[error("{0:#}")]
    Command(anyhow::Error),
}

impl LaunchError {
    /// The program's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => exit::USAGE,
            _ => exit::START_FAILED,
        }
    }
}
