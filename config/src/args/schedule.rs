use super::positive;

const HEADING: &str = "Batching";

/// Orders of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyArg {
    /// First come, first served.
    Fcfs,
    /// Longest prefix match in the cache first.
    Lpm,
}

/// Batching and queueing.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ScheduleArgs {
    /// Requests in a batch at the most, of all DP ranks together [default: 64].
    #[arg(long, alias = "max-num-seqs", env = "LOCKSTEP_MAX_RUNNING_REQUESTS",
          value_name = "REQUESTS", value_parser = positive, help_heading = HEADING)]
    pub max_running_requests: Option<usize>,
    /// Requests waiting at the most; more get status 429 [default: 1024].
    ///
    /// Those for which a slot of --max-running-requests is free do not count, even if
    /// the KV cache has no room for them yet, and none is refused that was retracted.
    /// One that names a DP rank has slots there alone.
    #[arg(long, env = "LOCKSTEP_MAX_QUEUED_REQUESTS", value_name = "REQUESTS",
          value_parser = positive, help_heading = HEADING)]
    pub max_queued_requests: Option<usize>,
    /// Prompt tokens waiting at the most; more get status 429 [default: 1048576].
    #[arg(long, env = "LOCKSTEP_MAX_QUEUED_TOKENS", value_name = "TOKENS",
          value_parser = positive, help_heading = HEADING)]
    pub max_queued_tokens: Option<usize>,
    /// New prompt tokens per step at the most [default: 1024; unchunked: the context length].
    ///
    /// Bounds how long a step can hold up running requests.
    #[arg(long, env = "LOCKSTEP_MAX_PREFILL_TOKENS", value_name = "TOKENS",
          value_parser = positive, help_heading = HEADING)]
    pub max_prefill_tokens: Option<usize>,
    /// Prompts are cut into chunks of so many tokens; -1 = whole [default: 512].
    ///
    /// With --enable-dp-attention each DP rank has its share of a chunk, as with SGLang.
    #[arg(long, env = "LOCKSTEP_CHUNKED_PREFILL_SIZE", value_name = "TOKENS",
          allow_negative_numbers = true, help_heading = HEADING)]
    pub chunked_prefill_size: Option<i64>,
    /// Order of the queue [default: fcfs].
    #[arg(long, env = "LOCKSTEP_SCHEDULE_POLICY", value_name = "POLICY", help_heading = HEADING)]
    pub schedule_policy: Option<PolicyArg>,
    /// Requests may bring a priority; higher runs first.
    #[arg(long, env = "LOCKSTEP_ENABLE_PRIORITY_SCHEDULING",
          help_heading = HEADING)]
    pub enable_priority_scheduling: bool,
    /// Wait for each step's result before planning the next.
    #[arg(long, env = "LOCKSTEP_DISABLE_OVERLAP_SCHEDULE",
          help_heading = HEADING)]
    pub disable_overlap_schedule: bool,
}
