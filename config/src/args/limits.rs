use super::positive;

const HEADING: &str = "Limits on requests";

/// Limits that are checked before a request is queued; beyond them the answer
/// is an error.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LimitArgs {
    /// Bytes of a request body [default: 16777216].
    #[arg(long, env = "LOCKSTEP_MAX_BODY_BYTES", value_name = "BYTES", value_parser = positive,
          help_heading = HEADING)]
    pub max_body_bytes: Option<usize>,
    /// Bytes of requests that each process with public ports holds at once:
    /// bodies, what JSON becomes of them, messages that are not whole yet,
    /// answers and tokens that wait for their clients, and log-probabilities to
    /// come
    /// [default: 536870912, or four times --max-body-bytes if that is more].
    /// Beyond, requests get 429; the last quarter is for those of up to 64 KiB,
    /// and one address may hold half of it. Log-probabilities for which there can
    /// never be room get 400.
    #[arg(long, env = "LOCKSTEP_MAX_REQUEST_MEMORY", value_name = "BYTES",
          value_parser = positive, help_heading = HEADING)]
    pub max_request_memory: Option<usize>,
    /// Bytes of all headers of a request, at least 8192 [default: 32768].
    #[arg(long, env = "LOCKSTEP_MAX_HEADER_BYTES", value_name = "BYTES", value_parser = positive,
          help_heading = HEADING)]
    pub max_header_bytes: Option<usize>,
    /// Nesting of a JSON body, at most 127 [default: 64].
    #[arg(long, env = "LOCKSTEP_MAX_JSON_DEPTH", value_name = "LEVELS", value_parser = positive,
          help_heading = HEADING)]
    pub max_json_depth: Option<usize>,
    /// Messages of a chat [default: 4096].
    #[arg(long, env = "LOCKSTEP_MAX_MESSAGES", value_name = "COUNT", value_parser = positive,
          help_heading = HEADING)]
    pub max_messages: Option<usize>,
    /// Tools of a chat [default: 512].
    #[arg(long, env = "LOCKSTEP_MAX_TOOLS", value_name = "COUNT", value_parser = positive,
          help_heading = HEADING)]
    pub max_tools: Option<usize>,
    /// Bytes of all tools of a chat [default: 1048576].
    #[arg(long, env = "LOCKSTEP_MAX_TOOL_BYTES", value_name = "BYTES", value_parser = positive,
          help_heading = HEADING)]
    pub max_tool_bytes: Option<usize>,
    /// Prompts in one completions request [default: 1024].
    #[arg(long, env = "LOCKSTEP_MAX_PROMPTS", value_name = "COUNT", value_parser = positive,
          help_heading = HEADING)]
    pub max_prompts: Option<usize>,
    /// Choices of one prompt (`n`) [default: 128]. All prompts of a request
    /// together may have as many, or as many as `--max-prompts`.
    #[arg(long, env = "LOCKSTEP_MAX_CHOICES", value_name = "COUNT", value_parser = positive,
          help_heading = HEADING)]
    pub max_choices: Option<usize>,
    /// Alternatives per position (`top_logprobs`) [default: 20]. The OpenAI
    /// routes never give more than OpenAI: 20 for a chat, 5 for a completion.
    #[arg(long, env = "LOCKSTEP_MAX_TOP_LOGPROBS", value_name = "COUNT", help_heading = HEADING)]
    pub max_top_logprobs: Option<usize>,
    /// Stop strings [default: 4].
    #[arg(long, env = "LOCKSTEP_MAX_STOP_STRINGS", value_name = "COUNT", help_heading = HEADING)]
    pub max_stop_strings: Option<usize>,
    /// Bytes of one stop string [default: 1024].
    #[arg(long, env = "LOCKSTEP_MAX_STOP_BYTES", value_name = "BYTES", value_parser = positive,
          help_heading = HEADING)]
    pub max_stop_bytes: Option<usize>,
    /// Stop token ids [default: 64].
    #[arg(long, env = "LOCKSTEP_MAX_STOP_TOKEN_IDS", value_name = "COUNT",
          help_heading = HEADING)]
    pub max_stop_token_ids: Option<usize>,
    /// Entries of `logit_bias` [default: 1024].
    #[arg(long, env = "LOCKSTEP_MAX_LOGIT_BIAS", value_name = "COUNT", help_heading = HEADING)]
    pub max_logit_bias: Option<usize>,
}
