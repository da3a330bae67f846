//! Reasons why a worker process ends.

use std::path::PathBuf;

use lockstep_collective::CollectiveError;
use lockstep_process::ConnectError;

use crate::worker::WorkerError;

/// A worker that could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A thread or socket could not be set up.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// This process was not started as a worker.
    #[error("the {0} role cannot run as a worker")]
    Role(String),
    /// The scheduler could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A certificate or its key can't be used.
    #[error(transparent)]
    Tls(#[from] lockstep_ports::TlsError),
    /// The scheduler refused or ended the stream.
    #[error("the scheduler ended the stream: {0}")]
    Scheduler(String),
    /// The peers could not be reached.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The device or the model failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Ranks differ. The last steps of this rank are in a file.
    #[error("{source}; the last steps of rank {rank} are in {}", file.display())]
    Diverged {
        /// The difference.
        #[source]
        source: Box<WorkerError>,
        /// This rank.
        rank: usize,
        /// File with a line of JSON for each step.
        file: PathBuf,
    },
    /// The launcher is gone or told this process to stop at once.
    #[error("told to stop")]
    Halted,
}

impl RunError {
    /// Returns true if ranks were found to differ.
    pub fn is_divergence(&self) -> bool {
        match self {
            Self::Diverged { .. } => true,
            Self::Worker(error) => error.is_divergence(),
            _ => false,
        }
    }
}
