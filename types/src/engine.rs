//! The resolved configuration, as all processes of an engine know it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    AdapterLimits, CollectiveConfig, ConnectionLimits, DeviceConfig, Dtype, KvCacheDtype,
    ModelConfig, NamedAdapter, SpeculationConfig, TraceConfig,
};

/// Configuration that all processes of one engine share. It is equal on every node: each
/// handshake compares its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// The model.
    pub model: ModelConfig,
    /// Type that weights are held and activations are multiplied in.
    pub dtype: Dtype,
    /// Devices of the ranks.
    pub device: DeviceConfig,
    /// Instruction set of the processor's kernels; `None` = the best one of each rank's
    /// machine.
    pub isa: Option<String>,
    /// Token counts of the passes that a device records and repeats, ascending; empty if
    /// nothing is recorded.
    pub graphs: Vec<usize>,
    /// Ranks and nodes.
    pub parallel: ParallelConfig,
    /// The paged KV cache.
    pub kv: KvConfig,
    /// Batching.
    pub schedule: ScheduleConfig,
    /// Speculative decoding.
    pub speculation: SpeculationConfig,
    /// Limits of adapters.
    pub adapters: AdapterLimits,
    /// Time limits.
    pub timeouts: TimeoutConfig,
    /// The public front.
    pub server: ServerConfig,
}

impl EngineConfig {
    /// Returns the largest number of output tokens after a prompt of `prompt` tokens. Drafts
    /// beyond the output need room in the context too.
    pub fn max_output_tokens(&self, prompt: usize) -> usize {
        let drafted = self.speculation.max_speculative_num_draft_tokens;
        let taken = prompt.saturating_add(drafted);
        self.server.context_length.saturating_sub(taken)
    }
}

/// Ranks and nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParallelConfig {
    /// Tensor-parallel ranks over all nodes.
    pub tp_size: usize,
    /// DP ranks, which divide the `tp_size` ranks. Each DP rank has its own requests and KV
    /// memory. 1 = attention is not data-parallel.
    pub dp_size: usize,
    /// Groups of neighbouring ranks, which divide the `tp_size` ranks, that experts are split over by
    /// number. 1 = every rank has a part of each expert.
    pub ep_size: usize,
    /// Nodes; each runs `tp_size / nnodes` ranks.
    pub nnodes: usize,
    /// `host:port` of node 0's scheduler; empty within one node.
    pub dist_init_addr: String,
    /// Compute threads per rank.
    pub threads_per_rank: usize,
    /// Tokenizer-manager processes on node 0.
    pub tokenizer_managers: usize,
    /// Exchange of data between ranks on GPUs.
    pub collectives: CollectiveConfig,
}

impl ParallelConfig {
    /// Number of ranks in one DP rank. They share its requests and split its attention.
    pub fn attn_tp_size(&self) -> usize {
        self.tp_size / self.dp_size
    }

    /// Returns true if `rank` is the lead of its DP rank, which is its first rank. The lead
    /// drafts, and its outputs count.
    pub fn leads(&self, rank: usize) -> bool {
        rank.is_multiple_of(self.attn_tp_size())
    }

    /// Returns the DP rank that `rank` belongs to. Neighbouring ranks share a DP rank.
    pub fn dp_rank(&self, rank: usize) -> usize {
        rank / self.attn_tp_size()
    }
}

/// The paged KV cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvConfig {
    /// Tokens per page.
    pub page_size: usize,
    /// Pages of each group of layers that keeps all positions, on every rank; DP ranks do not
    /// share pages. Page 0 is among them; it is kept for padding and never handed out. Groups
    /// with windows have fewer: see [`EngineConfig::kv_pages`].
    pub num_pages: usize,
    /// States of recurrent layers, on every rank; DP ranks do not share them. There is one for
    /// each request that may run at once, and those beyond are for the prefix cache. 0 for models
    /// without recurrent layers.
    pub states: usize,
    /// Type of cached keys and values.
    pub dtype: KvCacheDtype,
    /// True if the prefixes of finished requests stay in a radix cache until their pages are
    /// needed.
    pub radix_cache: bool,
}

/// Order of waiting requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulePolicy {
    /// First come, first served.
    Fcfs,
    /// Longest prefix match in the cache first.
    Lpm,
}

/// Batching, of all DP ranks together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleConfig {
    /// Most requests that run at once. In the schedule of one DP rank, also the number of a
    /// worker's slots.
    pub max_running_requests: usize,
    /// Most requests that wait; further requests get 429.
    pub max_queued_requests: usize,
    /// Most prompt tokens that wait; further requests get 429.
    pub max_queued_tokens: usize,
    /// Most new prompt tokens per step, over all requests.
    pub max_prefill_tokens: usize,
    /// Tokens per chunk of a prompt; `None` = prompts are not cut.
    pub chunked_prefill_size: Option<usize>,
    /// Order of the queue.
    pub policy: SchedulePolicy,
    /// True if requests may carry a priority.
    pub priorities: bool,
    /// True if the next step is planned before the result of the last one is back.
    pub overlap: bool,
}

impl ScheduleConfig {
    /// Returns the schedule of one of `dp_size` DP ranks. As in SGLang, a DP rank has its share
    /// of the running requests and of a chunk's tokens, rounded down, but at least one: with
    /// none it could run nothing. Example: 10 running requests on 4 DP ranks make 2 for each.
    /// All other values are the same on each DP rank.
    #[must_use]
    pub fn of_dp_rank(&self, dp_size: usize) -> Self {
        let share = |all: usize| (all / dp_size).max(1);
        Self {
            max_running_requests: share(self.max_running_requests),
            chunked_prefill_size: self.chunked_prefill_size.map(share),
            ..self.clone()
        }
    }
}

/// Returns the part of `all` that is reported for DP rank `at` of `dp_size`. Parts are for
/// things that belong to no DP rank alone, such as waiting requests. Parts are as equal as they
/// can be, and their sum is `all`: 10 over 4 DP ranks is 3, 3, 2, 2.
pub fn share_of_dp_rank(all: u64, at: usize, dp_size: usize) -> u64 {
    let (at, dp_size) = (at as u64, dp_size.max(1) as u64);
    all / dp_size + u64::from(at < all % dp_size)
}

/// Time limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutConfig {
    /// Time limit from arrival to the last token, seconds; `None` = no limit.
    pub request_s: Option<u64>,
    /// Time limit from arrival to a first step, seconds; `None` = no limit.
    pub queue_s: Option<u64>,
    /// Longest time of a step, seconds. A longer step ends the group.
    pub step_watchdog_s: u64,
    /// Time limit for the answer of `/health`, seconds.
    pub health_s: u64,
    /// Time that requests have to finish after SIGTERM, seconds.
    pub drain_s: u64,
    /// Time before `drain_s` in which requests are still admitted while `/health` fails,
    /// seconds.
    pub drain_delay_s: u64,
    /// Time limit for the whole start, seconds.
    pub startup_s: u64,
    /// Time limit for a rank that reads new weights, seconds.
    pub weight_update_s: u64,
}

impl TimeoutConfig {
    /// Returns the time for which ranks and the scheduler wait for each other while weights are
    /// loaded, at the start or while serving, seconds. A rank that gives up reading has time to
    /// say so.
    pub fn loading_s(&self) -> u64 {
        const TO_ANSWER: u64 = 60;
        self.startup_s
            .max(self.weight_update_s.saturating_add(TO_ANSWER))
    }
}

/// The public front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Address of all public ports.
    pub host: String,
    /// Port of the OpenAI-compatible HTTP.
    pub port: u16,
    /// Port of `lockstep.v1.Inference`; `None` = closed.
    pub grpc_port: Option<u16>,
    /// Port of `sglang.grpc.scheduler.SglangScheduler`; `None` = closed.
    pub sglang_grpc_port: Option<u16>,
    /// The model's name in the API.
    pub served_model_name: String,
    /// Other names of the model that requests may use.
    pub served_model_aliases: Vec<String>,
    /// Longest prompt plus output, tokens.
    pub context_length: usize,
    /// True if clients must show a key. The key itself is in [`NodeConfig`].
    pub api_key_required: bool,
    /// True if `/metrics` has SGLang's names too.
    pub sglang_metrics: bool,
    /// Rights of web pages.
    pub web: WebConfig,
    /// Parsers of the model's answers.
    pub answers: AnswersConfig,
    /// Limits on requests.
    pub limits: LimitsConfig,
}

impl ServerConfig {
    /// Returns true if requests without an adapter may name the model so.
    pub fn is_model_name(&self, name: &str) -> bool {
        let aliases = &self.served_model_aliases;
        name == "default" || name == self.served_model_name || aliases.iter().any(|own| own == name)
    }
}

/// Parsers that tell reasoning and tool calls from the text of chat answers, by name: `auto`
/// = that of the model's chat template, `none` = none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswersConfig {
    /// Parser of calls.
    pub tool_call_parser: String,
    /// Parser of reasoning.
    pub reasoning_parser: String,
    /// Parts of calls that are held to the request's tools where it does not ask for that.
    pub tool_strict_level: ToolStrictLevel,
}

/// Parts of a call that a grammar holds to the request's tools, of a request that leaves the model
/// to choose and has no strict tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStrictLevel {
    /// None.
    Off,
    /// The name of the function. Arguments are some JSON object.
    Function,
    /// The name and the arguments, as far as their schema can be followed.
    Parameter,
}

impl Default for AnswersConfig {
    fn default() -> Self {
        Self {
            tool_call_parser: "auto".to_owned(),
            reasoning_parser: "auto".to_owned(),
            tool_strict_level: ToolStrictLevel::Function,
        }
    }
}

/// Web pages and host names that the front answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebConfig {
    /// Origins whose pages may use the server, in lower case; `*` = every page.
    pub cors_allowed_origins: Vec<String>,
    /// Names in the `Host` header that are answered without a key, in lower case. Names that
    /// nobody else can register are answered anyway. `.name` = all names below it, `*` = any
    /// name.
    pub allowed_hosts: Vec<String>,
    /// True if the console is served.
    pub console: bool,
}

/// Limits checked before anything is queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsConfig {
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Bytes of all request headers.
    pub header_bytes: u32,
    /// Nesting of a JSON body.
    pub json_depth: usize,
    /// Bytes of requests that one process holds at once.
    pub memory_bytes: usize,
    /// Limits on connections, which hold before a request is read.
    pub connections: ConnectionLimits,
    /// Limits on the contents of one request.
    pub request: RequestLimits,
}

/// Limits on the contents of one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimits {
    /// Chat messages.
    pub messages: usize,
    /// Tools of a chat.
    pub tools: usize,
    /// Bytes of all tools of a chat.
    pub tool_bytes: usize,
    /// Prompts in one completions request.
    pub prompts: usize,
    /// Choices of one prompt (`n`).
    pub choices: usize,
    /// Alternatives per position (`top_logprobs`, `logprobs`).
    pub top_logprobs: usize,
    /// Stop strings.
    pub stops: usize,
    /// Bytes of one stop string.
    pub stop_bytes: usize,
    /// Stop token ids.
    pub stop_token_ids: usize,
    /// Entries of `logit_bias`.
    pub logit_bias: usize,
}

impl RequestLimits {
    /// Most choices of one request, over all its prompts.
    pub fn all_choices(&self) -> usize {
        self.choices.max(self.prompts)
    }
}

/// Configuration that differs between nodes or is secret. It is never hashed or printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// This node's number.
    pub node_rank: usize,
    /// Private folder (0700) for sockets and the configuration file.
    pub run_dir: PathBuf,
    /// Core numbers for each local rank's threads; empty = not pinned.
    pub cores: Vec<Vec<usize>>,
    /// Folder of packed weights for the next start; `None` = weights are packed anew at each
    /// start.
    pub weight_cache: Option<PathBuf>,
    /// Folder of the weight folders that requests may name as new weights; `None` = requests
    /// may name none.
    pub weight_update_dir: Option<PathBuf>,
    /// Adapters that are loaded at the start.
    pub lora_paths: Vec<NamedAdapter>,
    /// Folder of the adapters' folders that requests may name; `None` = requests may name none.
    pub lora_dir: Option<PathBuf>,
    /// Key that clients must show.
    pub api_key: Option<String>,
    /// Key that operators must show.
    pub admin_api_key: Option<String>,
    /// Files of the public ports' TLS; `None` = the ports speak no TLS.
    pub tls: Option<TlsFiles>,
    /// Files of the TLS between nodes, its roots included; `None` = no encryption between
    /// nodes.
    pub dist_tls: Option<TlsFiles>,
    /// Secret of all nodes, which workers must show.
    pub dist_secret: Option<String>,
    /// Filter for the log lines, as in `RUST_LOG`.
    pub log: String,
    /// True if log lines are JSON.
    pub log_json: bool,
    /// Export of traces; `None` = no request is traced.
    pub traces: Option<TraceConfig>,
}

/// Files, in PEM, of the public ports' TLS or of the TLS between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// Certificate to show, with the certificates between it and its root.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Roots of the certificates that the other side must show; `None` = the other side needs
    /// no certificate.
    pub client_roots: Option<PathBuf>,
}

impl EngineConfig {
    /// Ranks on each node.
    pub fn ranks_per_node(&self) -> usize {
        self.parallel.tp_size / self.parallel.nnodes
    }
    /// Tokens that each DP rank's cache holds for requests and prefixes. Page 0 is not counted:
    /// it is kept for padding.
    pub fn kv_tokens(&self) -> usize {
        self.kv.num_pages.saturating_sub(1) * self.kv.page_size
    }
}
