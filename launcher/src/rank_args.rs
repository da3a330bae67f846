//! Options of the ranks that run as threads of one command.

use clap::builder::RangedU64ValueParser;
use lockstep_config::{ServeArgs, args::DeviceArg};

/// Ranks of a command that serves nobody.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RankArgs {
    /// Tensor-parallel ranks, as threads of this process. Packed weights are for a server
    /// with as many.
    #[arg(
        long,
        visible_alias = "tp",
        alias = "tensor-parallel-size",
        env = "LOCKSTEP_TP_SIZE",
        value_name = "RANKS",
        default_value_t = 1
    )]
    pub(crate) tp_size: usize,
    /// DP ranks that these ranks form with --enable-dp-attention.
    #[arg(
        long,
        visible_alias = "dp",
        alias = "data-parallel-size",
        env = "LOCKSTEP_DP_SIZE",
        value_name = "RANKS",
        default_value_t = 1
    )]
    dp_size: usize,
    /// Data-parallel attention.
    #[arg(long, env = "LOCKSTEP_ENABLE_DP_ATTENTION")]
    enable_dp_attention: bool,
    /// Groups of ranks that have experts of their own, as of `lockstep serve` [default: 1].
    #[arg(
        long,
        visible_alias = "ep",
        alias = "expert-parallel-size",
        env = "LOCKSTEP_EP_SIZE",
        value_name = "GROUPS",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..)
    )]
    ep_size: Option<usize>,
    /// Compute threads of each rank [default: available cores / ranks].
    #[arg(
        long,
        alias = "threads-per-rank",
        env = "LOCKSTEP_THREADS_PER_RANK",
        value_name = "THREADS",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..)
    )]
    threads: Option<usize>,
    /// Device that computes the model, as of `lockstep serve` [default: auto].
    #[arg(long, env = "LOCKSTEP_DEVICE", value_name = "DEVICE")]
    device: Option<DeviceArg>,
    /// Number of the first GPU that is used, counted from 0 [default: 0].
    #[arg(long, env = "LOCKSTEP_BASE_GPU_ID", value_name = "GPU")]
    base_gpu_id: Option<usize>,
    /// Distance of the GPUs of neighbouring ranks; 0: they share one [default: 1].
    #[arg(long, env = "LOCKSTEP_GPU_ID_STEP", value_name = "STEP")]
    gpu_id_step: Option<usize>,
}

impl RankArgs {
    /// Writes the options into those of a server. Each DP rank runs at least one request.
    pub(crate) fn give_to(&self, serve: &mut ServeArgs) {
        serve.parallel.tp_size = Some(self.tp_size);
        serve.parallel.dp_size = Some(self.dp_size);
        serve.parallel.ep_size = self.ep_size;
        serve.parallel.enable_dp_attention = self.enable_dp_attention;
        serve.parallel.threads_per_rank = self.threads;
        serve.parallel.device = self.device;
        serve.parallel.base_gpu_id = self.base_gpu_id;
        serve.parallel.gpu_id_step = self.gpu_id_step;
        serve.schedule.max_running_requests = Some(self.dp_size);
    }
}
