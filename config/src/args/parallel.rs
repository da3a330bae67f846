use std::path::PathBuf;

use super::positive;

const HEADING: &str = "Parallelism";

/// What ranks can compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceArg {
    /// The processor's cores.
    Cpu,
    /// NVIDIA GPUs, one for each rank.
    Cuda,
    /// GPUs where there are as many as ranks, which can serve what is asked for
    /// and have the memory, else the processor.
    Auto,
}

/// Ways for ranks' data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CollectiveBackendArg {
    /// NCCL, where every rank finds it and has a GPU of its own; otherwise the host.
    Auto,
    /// From GPU to GPU by NVIDIA's library NCCL, so that passes of several ranks are
    /// recorded too.
    Nccl,
    /// Through the host's memory.
    Host,
}

/// Ranks, threads and nodes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ParallelArgs {
    /// Tensor-parallel ranks over all nodes [default: 1; demo model on the processor: 2].
    ///
    /// Each rank is a process with its share of the weights and of the cache.
    #[arg(long, visible_alias = "tp", alias = "tensor-parallel-size", env = "LOCKSTEP_TP_SIZE",
          value_name = "RANKS", value_parser = positive, help_heading = HEADING)]
    pub tp_size: Option<usize>,
    /// Ranks on the processor if --tp-size is not given; no option of users.
    #[arg(skip)]
    pub tp_size_on_cpu: Option<usize>,
    /// DP ranks that --tp-size ranks form with --enable-dp-attention [default: 1].
    ///
    /// A number that divides --tp-size. Each DP rank has requests, KV cache and
    /// drafts of its own, and tp-size / dp-size ranks that split its attention.
    #[arg(long, visible_alias = "dp", alias = "data-parallel-size", env = "LOCKSTEP_DP_SIZE",
          value_name = "RANKS", value_parser = positive, help_heading = HEADING)]
    pub dp_size: Option<usize>,
    /// Data-parallel attention: each of --dp-size DP ranks attends to requests of its
    /// own, while all ranks together compute the rest of the model.
    ///
    /// Fewer cached keys and values are held twice, and steps take more requests.
    /// --max-running-requests and --chunked-prefill-size are divided among DP ranks.
    /// The depth of drafts adapts, unless --speculative-adaptive=false.
    #[arg(long, env = "LOCKSTEP_ENABLE_DP_ATTENTION", help_heading = HEADING)]
    pub enable_dp_attention: bool,
    /// Groups of ranks that have experts of their own, in a model with experts
    /// [default: 1, each rank has a part of every expert].
    ///
    /// A number that divides --tp-size, at most the model's experts. Each group of
    /// tp-size / ep-size neighbouring ranks has about as many whole experts, of which
    /// each of its ranks has a part. A step takes as long as the group whose experts
    /// are chosen most, which evens out with many tokens a step. So try it where
    /// --tp-size leaves parts of experts too thin.
    #[arg(long, visible_alias = "ep", alias = "expert-parallel-size", env = "LOCKSTEP_EP_SIZE",
          value_name = "GROUPS", value_parser = positive, help_heading = HEADING)]
    pub ep_size: Option<usize>,
    /// Device that computes the model [default: auto].
    ///
    /// A GPU needs NVIDIA's driver, and CUDA's libraries libnvrtc and libcublasLt
    /// where libraries are looked for; `lockstep doctor` says what is missing. Where
    /// auto leaves a GPU that is there, a note at the start says why.
    #[arg(long, env = "LOCKSTEP_DEVICE", value_name = "DEVICE", help_heading = HEADING)]
    pub device: Option<DeviceArg>,
    /// Number of the first GPU that is used, counted from 0 [default: 0].
    ///
    /// Each rank has a GPU of its own, the first of every node this one.
    /// CUDA counts the fastest first, `lockstep doctor` as it does; with
    /// CUDA_DEVICE_ORDER=PCI_BUS_ID both count as nvidia-smi.
    #[arg(long, env = "LOCKSTEP_BASE_GPU_ID", value_name = "GPU", help_heading = HEADING)]
    pub base_gpu_id: Option<usize>,
    /// Distance of the GPUs of neighbouring ranks [default: 1].
    ///
    /// With 0 all ranks of a node share the GPU of --base-gpu-id, which then needs
    /// memory for all of them; they take turns on it.
    #[arg(long, env = "LOCKSTEP_GPU_ID_STEP", value_name = "STEP", help_heading = HEADING)]
    pub gpu_id_step: Option<usize>,
    /// What ranks on GPUs exchange their data by [default: auto].
    ///
    /// Equal on all nodes. The summary of the start says which way was taken.
    #[arg(long, visible_alias = "dist-backend", env = "LOCKSTEP_COLLECTIVE_BACKEND",
          value_name = "WAY", help_heading = HEADING)]
    pub collective_backend: Option<CollectiveBackendArg>,
    /// Path of the library NCCL, equal on all nodes [default: libnccl.so.2 or libnccl.so
    /// where libraries are looked for].
    #[arg(long, env = "LOCKSTEP_NCCL_PATH", value_name = "FILE", help_heading = HEADING)]
    pub nccl_path: Option<PathBuf>,
    /// Instruction set of the kernels [default: the best that each machine runs].
    ///
    /// scalar, neon, avx2, avx512, avx512-bf16, amx-emulated or amx, of which
    /// `lockstep doctor` lists those of this machine. amx-emulated is slow and has
    /// the bits of amx on every machine with AVX2 or NEON; other sets may round
    /// otherwise, so that a text can differ where two tokens are about as likely.
    #[arg(long, env = "LOCKSTEP_ISA", value_name = "NAME", help_heading = HEADING)]
    pub isa: Option<String>,
    /// Compute threads of each rank [default: available cores / ranks of this node].
    #[arg(long, env = "LOCKSTEP_THREADS_PER_RANK", value_name = "THREADS",
          value_parser = positive, help_heading = HEADING)]
    pub threads_per_rank: Option<usize>,
    /// Pin compute threads to cores: `auto`, or a list for each rank of this node, as `0-3|4-7`.
    ///
    /// Pin when nothing else runs on the machine; on a shared machine leave it
    /// to the operating system, which is the default.
    #[arg(long, env = "LOCKSTEP_PIN_CORES", value_name = "CORES", help_heading = HEADING)]
    pub pin_cores: Option<String>,
    /// Tokenizer-manager processes on node 0 [default: 1].
    ///
    /// One serves thousands of tokens a second; more share the port.
    #[arg(long, env = "LOCKSTEP_TOKENIZER_MANAGERS", value_name = "COUNT",
          value_parser = positive, help_heading = HEADING)]
    pub tokenizer_managers: Option<usize>,
    /// Nodes, each with tp-size / nnodes ranks [default: 1].
    ///
    /// Start the same command on every node, with its own --node-rank.
    #[arg(long, env = "LOCKSTEP_NNODES", value_name = "NODES", value_parser = positive,
          help_heading = HEADING)]
    pub nnodes: Option<usize>,
    /// This node's number; node 0 has the public ports and the scheduler [default: 0].
    #[arg(long, env = "LOCKSTEP_NODE_RANK", value_name = "NODE", help_heading = HEADING)]
    pub node_rank: Option<usize>,
    /// `host:port` on node 0 where workers of other nodes register.
    #[arg(long, env = "LOCKSTEP_DIST_INIT_ADDR", value_name = "HOST:PORT", help_heading = HEADING)]
    pub dist_init_addr: Option<String>,
    /// Secret that all nodes share; required with several nodes.
    ///
    /// Better from --dist-secret-file or the environment: a flag can be seen by
    /// every user of the machine.
    #[arg(long, env = "LOCKSTEP_DIST_SECRET", value_name = "SECRET", hide_env_values = true,
          help_heading = HEADING)]
    pub dist_secret: Option<String>,
    /// File with the secret that all nodes share.
    #[arg(long, env = "LOCKSTEP_DIST_SECRET_FILE", value_name = "FILE", help_heading = HEADING)]
    pub dist_secret_file: Option<PathBuf>,
    /// Certificate of this node (PEM): what nodes exchange is encrypted then, and each shows
    /// the others one that --dist-ssl-ca-certs has signed [default: no TLS].
    ///
    /// All nodes are given one, or none is.
    #[arg(long, env = "LOCKSTEP_DIST_SSL_CERTFILE", value_name = "FILE", help_heading = HEADING)]
    pub dist_ssl_certfile: Option<PathBuf>,
    /// Private key of --dist-ssl-certfile (PEM, without a password).
    #[arg(long, env = "LOCKSTEP_DIST_SSL_KEYFILE", value_name = "FILE", help_heading = HEADING)]
    pub dist_ssl_keyfile: Option<PathBuf>,
    /// Roots of all nodes' certificates (PEM), which sign those of nothing else.
    #[arg(long, env = "LOCKSTEP_DIST_SSL_CA_CERTS", value_name = "FILE", help_heading = HEADING)]
    pub dist_ssl_ca_certs: Option<PathBuf>,
}
