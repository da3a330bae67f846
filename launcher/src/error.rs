//! Why a command ended without doing what it was asked.

use std::error::Error;
use std::path::PathBuf;

use lockstep_config::ConfigFileError;
use lockstep_hub::HubError;
use lockstep_process::exit;
use lockstep_traces::TraceError;
use lockstep_types::{ConfigError, ModelConfigError};

use crate::ports::Refusal;

/// An error for the person at the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// Options, model or machine do not allow it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration could not be handed to the roles.
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    /// A model that is named could not be had.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The environment says of traces what cannot be done.
    #[error("{0}.")]
    Traces(#[from] TraceError),
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
    #[error(transparent)]
    Port(#[from] Refusal),
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
    /// A tool failed, or was asked for what can't be done.
    #[error("{0:#}")]
    Command(anyhow::Error),
}

impl LaunchError {
    /// The program's exit code, by one rule for all commands: what is wrong with the
    /// command line or the configuration is not what failed.
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

    /// What is wrong with a model that was named, if that is it.
    pub(crate) fn hub(&self) -> Option<&HubError> {
        match self {
            Self::Hub(error) => Some(error),
            _ => None,
        }
    }

    /// What is wrong with the command line or the configuration, if that is it.
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
