use std::path::PathBuf;

const HEADING: &str = "Process";

/// Logs, files and restarts.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ProcessArgs {
    /// TOML file with any of these options; keys are the flags' names.
    #[arg(long, env = "LOCKSTEP_CONFIG", value_name = "FILE", help_heading = HEADING)]
    pub config: Option<PathBuf>,
    /// Log filter: error, warn, info, debug, trace, or per module as in RUST_LOG [default: info].
    #[arg(long, env = "LOCKSTEP_LOG_LEVEL", value_name = "FILTER", help_heading = HEADING)]
    pub log_level: Option<String>,
    /// Log lines as JSON, one object each.
    #[arg(long, env = "LOCKSTEP_LOG_JSON", help_heading = HEADING)]
    pub log_json: bool,
    /// Parent of the private folder for sockets [default: $XDG_RUNTIME_DIR, else the temporary
    /// folder].
    #[arg(long, env = "LOCKSTEP_RUN_DIR", value_name = "DIR", help_heading = HEADING)]
    pub run_dir: Option<PathBuf>,
    /// Restart the engine so many times when one of its processes dies [default: 0].
    ///
    /// All its processes are started anew; for a tokenizer-manager, that one alone.
    /// The first three restarts within ten minutes come at once, the others after a
    /// pause of 1, 2, 4, 8, 16 and then 30 seconds; a restart whose start failed is
    /// repeated after such pauses from the first on. What served well for ten minutes
    /// may be restarted as often again. The first start is not repeated: what stops
    /// it seldom goes away by itself.
    #[arg(long, env = "LOCKSTEP_MAX_RESTARTS", value_name = "COUNT", help_heading = HEADING)]
    pub max_restarts: Option<u32>,
}
