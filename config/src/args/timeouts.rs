use super::{seconds, seconds_or_none};

const HEADING: &str = "Time limits";

/// Time limits, in seconds.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TimeoutArgs {
    /// From a request's arrival to its last token [default: no limit].
    #[arg(long, env = "LOCKSTEP_REQUEST_TIMEOUT", value_name = "SECONDS", value_parser = seconds,
          help_heading = HEADING)]
    pub request_timeout: Option<u64>,
    /// From a request's arrival to its first step [default: no limit].
    #[arg(long, env = "LOCKSTEP_QUEUE_TIMEOUT", value_name = "SECONDS", value_parser = seconds,
          help_heading = HEADING)]
    pub queue_timeout: Option<u64>,
    /// A step that takes longer ends the engine with an error [default: 120].
    #[arg(long, env = "LOCKSTEP_WATCHDOG_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub watchdog_timeout: Option<u64>,
    /// `/health` answers within this [default: 20].
    #[arg(long, env = "LOCKSTEP_HEALTH_TIMEOUT", value_name = "SECONDS", value_parser = seconds,
          help_heading = HEADING)]
    pub health_timeout: Option<u64>,
    /// Running requests may finish for so long after SIGTERM [default: 30].
    #[arg(long, env = "LOCKSTEP_DRAIN_TIMEOUT", value_name = "SECONDS", value_parser = seconds,
          help_heading = HEADING)]
    pub drain_timeout: Option<u64>,
    /// After SIGTERM new requests are still served for so long while health already says no, for
    /// balancers that ask now and then; --drain-timeout begins behind it [default: 0].
    #[arg(long, env = "LOCKSTEP_DRAIN_DELAY", value_name = "SECONDS",
          value_parser = seconds_or_none, help_heading = HEADING)]
    pub drain_delay: Option<u64>,
    /// A process of the engine that answers no ping for so long is killed;
    /// 0 = never, for debuggers [default: 15].
    #[arg(long, env = "LOCKSTEP_PING_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds_or_none, help_heading = HEADING)]
    pub ping_timeout: Option<u64>,
    /// The whole start may take so long; before it, as long again all that describes a model which
    /// is loaded by its name, but not its weights [default: 600].
    #[arg(long, env = "LOCKSTEP_STARTUP_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub startup_timeout: Option<u64>,
    /// Ranks may read other weights for so long while they serve; then they go on with those
    /// that they have [default: as --startup-timeout].
    #[arg(long, env = "LOCKSTEP_WEIGHT_UPDATE_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub weight_update_timeout: Option<u64>,
}

impl TimeoutArgs {
    /// `--startup-timeout`, or its default, in seconds.
    pub fn startup(&self) -> u64 {
        self.startup_timeout.unwrap_or(600)
    }
}
