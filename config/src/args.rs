//! The command line of everything that serves a model.
//!
//! Flag names are SGLang's where it has the concept. Each flag can also be
//! given as `LOCKSTEP_<NAME>` in the environment or as a key of the `--config`
//! file; a flag wins over the environment, the environment over the file.

use lockstep_types::ConfigError;

mod algorithm;
mod connections;
mod graphs;
mod limits;
mod lora;
mod memory;
mod model;
mod parallel;
mod process;
mod refused;
mod schedule;
mod server;
mod speculation;
mod switches;
mod timeouts;
mod traces;

pub use algorithm::{AlgorithmArgs, with_algorithm_options};
pub use connections::ConnectionArgs;
pub use graphs::GraphArgs;
pub use limits::LimitArgs;
pub use lora::LoraArgs;
pub use memory::{KvCacheDtypeArg, MemoryArgs};
pub use model::{DtypeArg, LoadFormatArg, ModelArgs, QuantizationArg};
pub use parallel::{CollectiveBackendArg, DeviceArg, ParallelArgs};
pub use process::ProcessArgs;
pub(crate) use refused::{RefusedArgs, remedy};
pub use refused::{RefusedGroup, RefusedOption, check_short_options, refused_options};
pub use schedule::{PolicyArg, ScheduleArgs};
pub use server::{ServerArgs, StrictLevelArg};
pub use speculation::{SpeculationArgs, VerificationArg};
pub use switches::with_switch_values;
pub use timeouts::TimeoutArgs;
pub use traces::TraceArgs;

/// All options of `lockstep serve`. `None` and `false` mean "not given".
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServeArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Ranks and nodes.
    #[command(flatten)]
    pub parallel: ParallelArgs,
    /// What GPUs record.
    #[command(flatten)]
    pub graphs: GraphArgs,
    /// The KV cache.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Batching.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Drafts and their verification.
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// Adapters.
    #[command(flatten)]
    pub lora: LoraArgs,
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
    /// Traces of requests.
    #[command(flatten)]
    pub traces: TraceArgs,
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

    /// Looks whether an option of another engine was given, for those who do something
    /// before they resolve.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for the first one, with what to do instead.
    pub fn check_foreign(&self) -> Result<(), ConfigError> {
        self.refused.check()
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

/// More than a century: times so far ahead can still be computed with.
const MOST_SECONDS: u64 = u32::MAX as u64;

/// Parses seconds, at least 1.
fn seconds(text: &str) -> Result<u64, String> {
    match seconds_or_none(text) {
        Ok(0) | Err(_) => Err(format!("must be whole seconds, 1 to {MOST_SECONDS}")),
        good => good,
    }
}

/// Parses seconds, where 0 says that there is no limit.
fn seconds_or_none(text: &str) -> Result<u64, String> {
    let given = text.parse().ok().filter(|given| *given <= MOST_SECONDS);
    given.ok_or_else(|| format!("must be whole seconds, 0 to {MOST_SECONDS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_can_be_added_to_any_time() {
        assert_eq!(seconds("1"), Ok(1));
        assert_eq!(seconds("4294967295"), Ok(MOST_SECONDS));
        assert_eq!(seconds_or_none("0"), Ok(0));
        for bad in ["0", "-1", "x", "4294967296", "18446744073709551615"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert!(seconds_or_none("18446744073709551615").is_err());
    }
}
