//! The command line of everything that serves a model.
//!
//! Flag names are SGLang's where it has the concept. Each flag can also be
//! given as `LOCKSTEP_<NAME>` in the environment or as a key of the `--config`
//! file; a flag wins over the environment, the environment over the file.

mod algorithm;
mod connections;
mod limits;
mod memory;
mod model;
mod parallel;
mod process;
mod refused;
mod schedule;
mod server;
mod speculation;
mod timeouts;

pub use algorithm::{AlgorithmArgs, with_algorithm_options};
pub use connections::ConnectionArgs;
pub use limits::LimitArgs;
pub use memory::{KvCacheDtypeArg, MemoryArgs};
pub use model::{DtypeArg, ModelArgs, QuantizationArg};
pub use parallel::ParallelArgs;
pub use process::ProcessArgs;
pub(crate) use refused::RefusedArgs;
pub use schedule::{PolicyArg, ScheduleArgs};
pub use server::ServerArgs;
pub use speculation::{SpeculationArgs, VerificationArg};
pub use timeouts::TimeoutArgs;

/// All options of `lockstep serve`. `None` and `false` mean "not given".
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServeArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Ranks and nodes.
    #[command(flatten)]
    pub parallel: ParallelArgs,
    /// The KV cache.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Batching.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Drafts and their verification.
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// The public front.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Time limits.
    #[command(flatten)]
    pub timeouts: TimeoutArgs,
    /// Limits on connections.
    #[command(flatten)]
    pub connections: ConnectionArgs,
    /// Limits on requests.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Logs, files and restarts.
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(flatten)]
    pub(crate) refused: RefusedArgs,
}

impl ServeArgs {
    /// Options of an engine without a server in front; all others are as if not
    /// given.
    #[must_use]
    pub fn of_engine(
        model: ModelArgs,
        parallel: ParallelArgs,
        memory: MemoryArgs,
        schedule: ScheduleArgs,
    ) -> Self {
        Self {
            model,
            parallel,
            memory,
            schedule,
            ..Self::default()
        }
    }
}

/// Parses a whole number, at least 1.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("must be a whole number, at least 1".into()),
    }
}

/// Parses seconds, at least 1.
fn seconds(text: &str) -> Result<u64, String> {
    positive(text)
        .map(|s| s as u64)
        .map_err(|_| "must be whole seconds, at least 1".into())
}
