//! Errors that end the scheduler.

/// A scheduler that could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runtime or a socket could not be set up.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A certificate or its key can't be used.
    #[error(transparent)]
    Tls(#[from] lockstep_ports::TlsError),
    /// Traces can't be exported.
    #[error(transparent)]
    Traces(#[from] lockstep_traces::TraceError),
    /// The resolved configuration does not make a planner.
    #[error(transparent)]
    Planner(#[from] lockstep_planner::PlannerError),
    /// A worker is gone or stuck.
    #[error("the worker group failed: {0}")]
    Group(String),
    /// Workers are out of step.
    #[error("the worker group failed: {0}")]
    Diverged(String),
    /// A public or internal gRPC server ended with an error.
    #[error("gRPC server: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// The launcher is gone or told this process to stop at once.
    #[error("told to stop")]
    Halted,
}
