//! Options of CUDA graphs: the passes that a GPU records before it serves.

use super::positive;

const HEADING: &str = "CUDA graphs";

/// Passes that a GPU records as graphs, and repeats by one launch each.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct GraphArgs {
    /// Launch every operation of a pass by itself on a GPU, instead of one recorded graph.
    #[arg(long, env = "LOCKSTEP_DISABLE_CUDA_GRAPH", help_heading = HEADING)]
    pub disable_cuda_graph: bool,
    /// Requests of the largest batch that is recorded [default: --max-running-requests, 256 at most].
    ///
    /// Larger batches run as well, launch by launch.
    #[arg(long, env = "LOCKSTEP_CUDA_GRAPH_MAX_BS", value_name = "REQUESTS",
          value_parser = positive, conflicts_with = "cuda_graph_bs", help_heading = HEADING)]
    pub cuda_graph_max_bs: Option<usize>,
    /// Requests of all batches that are recorded [default: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, …].
    ///
    /// Each is recorded for rows of one token and for rows with all drafts, by default up
    /// to 256 tokens in all. A batch runs as the smallest that has room for its tokens,
    /// whatever the depth of drafts is. With --enable-dp-attention they are those of each
    /// DP rank.
    #[arg(long, env = "LOCKSTEP_CUDA_GRAPH_BS", value_name = "REQUESTS", num_args = 1..,
          value_delimiter = ',', value_parser = positive, help_heading = HEADING)]
    pub cuda_graph_bs: Vec<usize>,
}
