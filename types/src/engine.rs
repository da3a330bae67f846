//! The resolved configuration, as all processes of an engine know it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    CollectiveConfig, ConnectionLimits, DeviceConfig, Dtype, KvCacheDtype, ModelConfig,
    Quantization, SpeculationConfig, TraceConfig,
};

/// What all processes of one engine agree on. Equal on every node: its hash is
/// checked in each handshake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// The model.
    pub model: ModelConfig,
    /// Type that weights are held and activations are multiplied in.
    pub dtype: Dtype,
    /// What weight matrices are rounded to.
    pub quantization: Quantization,
    /// What ranks compute on.
    pub device: DeviceConfig,
    /// The instruction set of the processor's kernels, where it is not the best
    /// that each rank's machine runs.
    pub isa: Option<String>,
    /// Tokens of the passes that a device records and repeats, ascending; none where
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
    /// Time limits.
    pub timeouts: TimeoutConfig,
    /// The public front.
    pub server: ServerConfig,
}

impl EngineConfig {
    /// The most tokens that a prompt of `prompt` tokens leaves for the output:
    /// what is drafted beyond the output needs room in the context too.
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
    /// DP ranks, which divide those: each has requests and KV memory of its own.
    /// 1 = attention is not data-parallel.
    pub dp_size: usize,
    /// Nodes; each runs `tp_size / nnodes` ranks.
    pub nnodes: usize,
    /// `host:port` of node 0's scheduler; empty within one node.
    pub dist_init_addr: String,
    /// Compute threads per rank.
    pub threads_per_rank: usize,
    /// Tokenizer-manager processes on node 0.
    pub tokenizer_managers: usize,
    /// How ranks on GPUs exchange their data.
    pub collectives: CollectiveConfig,
}

impl ParallelConfig {
    /// Ranks of one DP rank: they share its requests, and split its attention.
    pub fn attn_tp_size(&self) -> usize {
        self.tp_size / self.dp_size
    }

    /// Whether a rank is the first of its DP rank, and leads it: it drafts, and its
    /// outputs count.
    pub fn leads(&self, rank: usize) -> bool {
        rank.is_multiple_of(self.attn_tp_size())
    }

    /// The DP rank that a rank belongs to; neighbours share one.
    pub fn dp_rank(&self, rank: usize) -> usize {
        rank / self.attn_tp_size()
    }
}

/// The paged KV cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvConfig {
    /// Tokens per page.
    pub page_size: usize,
    /// Pages on every rank, page 0 included: it is kept for padding and never
    /// handed out. DP ranks each have so many of their own.
    pub num_pages: usize,
    /// What keys and values are held in.
    pub dtype: KvCacheDtype,
    /// Finished prefixes stay in a radix cache until their pages are needed.
    pub radix_cache: bool,
}

/// How waiting requests are ordered.
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
    /// Requests that run at the most; of one DP rank, also the workers' slots.
    pub max_running_requests: usize,
    /// Requests waiting at the most; more get 429.
    pub max_queued_requests: usize,
    /// Prompt tokens waiting at the most; more get 429.
    pub max_queued_tokens: usize,
    /// New prompt tokens per step at the most, over all requests.
    pub max_prefill_tokens: usize,
    /// Prompts are cut into chunks of so many tokens; `None` = whole.
    pub chunked_prefill_size: Option<usize>,
    /// Order of the queue.
    pub policy: SchedulePolicy,
    /// Requests may bring a priority.
    pub priorities: bool,
    /// The next step is planned before the result of the last is back.
    pub overlap: bool,
}

impl ScheduleConfig {
    /// By what one of `dp_size` DP ranks batches. As in SGLang, it has its share of
    /// the requests that run and of the tokens of a chunk, rounded down; but at
    /// least one, for it could do nothing otherwise. The rest is for each of them.
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

/// The part of `all` that is told of DP rank `at` of so many, where what there is
/// belongs to none of them alone, such as requests that wait: parts are as equal as
/// they can be, and their sum is `all`.
pub fn share_of_dp_rank(all: u64, at: usize, dp_size: usize) -> u64 {
    let (at, dp_size) = (at as u64, dp_size.max(1) as u64);
    all / dp_size + u64::from(at < all % dp_size)
}

/// Time limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutConfig {
    /// From arrival to the last token, seconds; `None` = no limit.
    pub request_s: Option<u64>,
    /// Waiting for a first step, seconds; `None` = no limit.
    pub queue_s: Option<u64>,
    /// A step that takes longer ends the group, seconds.
    pub step_watchdog_s: u64,
    /// `/health` answers within this, seconds.
    pub health_s: u64,
    /// Requests may finish for so long after SIGTERM, seconds.
    pub drain_s: u64,
    /// Before that, requests are admitted for so long while health says no.
    pub drain_delay_s: u64,
    /// The whole start may take so long, seconds.
    pub startup_s: u64,
    /// A rank may read other weights for so long, seconds.
    pub weight_update_s: u64,
}

impl TimeoutConfig {
    /// For so long ranks and the scheduler wait for each other while weights are loaded,
    /// for the first time or while they serve, seconds. A rank that gives up reading
    /// says so in time.
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
    /// OpenAI-compatible HTTP.
    pub port: u16,
    /// `lockstep.v1.Inference`; `None` = closed.
    pub grpc_port: Option<u16>,
    /// `sglang.grpc.scheduler.SglangScheduler`; `None` = closed.
    pub sglang_grpc_port: Option<u16>,
    /// The model's name in the API.
    pub served_model_name: String,
    /// Other names that requests may call it by.
    pub served_model_aliases: Vec<String>,
    /// Longest prompt plus output, tokens.
    pub context_length: usize,
    /// Whether clients must show a key (the key itself is in [`NodeConfig`]).
    pub api_key_required: bool,
    /// `/metrics` has SGLang's names too.
    pub sglang_metrics: bool,
    /// What browsers may do here.
    pub web: WebConfig,
    /// What a request may ask for.
    pub limits: LimitsConfig,
}

/// Whom the front answers when a web page asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebConfig {
    /// Origins whose pages may use the server, in lower case; `*` = every page.
    pub cors_allowed_origins: Vec<String>,
    /// Names in `Host` that are answered without a key, in lower case, besides
    /// those that nobody else can register; `.name` = all below it, `*` = any.
    pub allowed_hosts: Vec<String>,
    /// The console is served.
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
    /// Connections, before they ask for anything.
    pub connections: ConnectionLimits,
    /// Contents of one request.
    pub request: RequestLimits,
}

/// What one request may contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimits {
    /// Chat messages.
    pub messages: usize,
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
    /// Choices of all prompts of a request.
    pub fn all_choices(&self) -> usize {
        self.choices.max(self.prompts)
    }
}

/// What differs between nodes or must not be shown; never hashed or printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// This node's number.
    pub node_rank: usize,
    /// Private folder (0700) for sockets and the configuration file.
    pub run_dir: PathBuf,
    /// Core numbers for each local rank's threads; empty = not pinned.
    pub cores: Vec<Vec<usize>>,
    /// Folder of packed weights for the next start; `None` = they are packed
    /// anew each time.
    pub weight_cache: Option<PathBuf>,
    /// Requests may name the folders inside this one as weights to go on with;
    /// `None` = none.
    pub weight_update_dir: Option<PathBuf>,
    /// Clients must show it.
    pub api_key: Option<String>,
    /// Operators must show it.
    pub admin_api_key: Option<String>,
    /// `None`: the public ports speak no TLS.
    pub tls: Option<TlsFiles>,
    /// `None`: what nodes exchange is not encrypted. Its roots are there.
    pub dist_tls: Option<TlsFiles>,
    /// Shared by all nodes; workers must show it.
    pub dist_secret: Option<String>,
    /// Filter for the log lines, as in `RUST_LOG`.
    pub log: String,
    /// Log lines as JSON.
    pub log_json: bool,
    /// `None`: no request is traced.
    pub traces: Option<TraceConfig>,
}

/// Files of the public ports' TLS, or of that between nodes, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// The certificate to show, and those between it and its root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Roots of the certificates that others must show; `None` = they need none.
    pub client_roots: Option<PathBuf>,
}

impl EngineConfig {
    /// Ranks on each node.
    pub fn ranks_per_node(&self) -> usize {
        self.parallel.tp_size / self.parallel.nnodes
    }
    /// Tokens that each DP rank's cache holds for requests and prefixes; page 0 is kept
    /// for padding.
    pub fn kv_tokens(&self) -> usize {
        self.kv.num_pages.saturating_sub(1) * self.kv.page_size
    }
}
