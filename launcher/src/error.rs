//! Reasons why a command ended without doing its work.

use std::error::Error;
use std::path::PathBuf;

use lockstep_config::ConfigFileError;
use lockstep_hub::HubError;
use lockstep_process::exit;
use lockstep_traces::TraceError;
use lockstep_types::{ConfigError, ModelConfigError};

use crate::ports::Refusal;

/// An error for the user of the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// Options, model or machine do not allow the command.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration could not be handed to the roles.
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    /// A model that is given by name could not be loaded.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The environment's settings of traces can't be used.
    #[error("{0}.")]
    Traces(#[from] TraceError),
    /// A folder for sockets could not be made.
    #[error("{}: {source}. Give another parent folder with --run-dir.", path.display())]
    RunDir {
        /// The folder.
        path: PathBuf,
        /// The system's error.
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
    #[error(transparent)]
    Port(#[from] Refusal),
    /// A child could not be started or watched.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The engine did not come up.
    #[error("the engine could not start: {0}")]
    Start(String),
    /// A tool failed, or was asked for something impossible.
    #[error("{0:#}")]
    Command(anyhow::Error),
}

impl LaunchError {
    /// The program's exit code, by one rule for all commands: errors of the command line or
    /// the configuration have a code of their own.
    pub(crate) fn exit_code(&self) -> u8 {
        let model = |cause: &(dyn Error + 'static)| cause.is::<ModelConfigError>();
        let is_usage = match self {
            Self::Command(error) => {
                let hub = |cause: &(dyn Error + 'static)| {
                    let own = cause.downcast_ref::<Self>().and_then(Self::hub);
                    let found = own.or_else(|| cause.downcast_ref());
                    found.is_some_and(HubError::is_usage)
                };
                self.config().is_some() || error.chain().any(|cause| model(cause) || hub(cause))
            }
            Self::Hub(error) => error.is_usage(),
            Self::Traces(_) => true,
            _ => self.config().is_some(),
        };
        match is_usage {
            true => exit::USAGE,
            false => exit::START_FAILED,
        }
    }

    /// The error of a model that is given by name, if this is one.
    pub(crate) fn hub(&self) -> Option<&HubError> {
        match self {
            Self::Hub(error) => Some(error),
            _ => None,
        }
    }

    /// The error of the command line or the configuration, if this is one.
    pub(crate) fn config(&self) -> Option<&ConfigError> {
        match self {
            Self::Config(error) => Some(error),
            Self::Command(error) => error.chain().find_map(|cause| {
                let own = cause.downcast_ref::<Self>().and_then(Self::config);
                own.or_else(|| cause.downcast_ref())
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_configuration_has_one_exit_code_however_it_was_found() {
        let model = ModelConfigError::Read {
            path: "config.json".into(),
            message: "it is missing".into(),
        };
        let wrong = || ConfigError::value("--tp-size", 3, "why", "What to do");
        let within = |error: anyhow::Error| LaunchError::Command(error.context("around it"));
        for error in [
            LaunchError::Config(wrong()),
            within(wrong().into()),
            within(LaunchError::Config(wrong()).into()),
            within(model.into()),
            LaunchError::Traces(TraceError::Variable {
                name: "OTEL_EXPORTER_OTLP_PROTOCOL",
                value: "http/protobuf".to_owned(),
                what: "is not spoken",
            }),
        ] {
            assert_eq!(error.exit_code(), exit::USAGE, "{error}");
        }
        let read = Err::<(), _>(std::io::Error::from(std::io::ErrorKind::NotFound));
        let read = read.context("weights").expect_err("missing");
        assert_eq!(LaunchError::Command(read).exit_code(), exit::START_FAILED);
        let start = LaunchError::Start("a process ended".into());
        assert_eq!(start.exit_code(), exit::START_FAILED);
    }
}
