use super::positive;

const HEADING: &str = "KV cache";

/// What keys and values can be cached as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum KvCacheDtypeArg {
    /// The type of --dtype.
    Auto,
    /// 16-bit brain float.
    #[value(alias = "bf16")]
    Bfloat16,
    /// 32-bit float.
    Float32,
    /// 8-bit integers with a scale for every head of a token: half of bfloat16.
    Int8,
    /// Refused, with a remedy, as the next two.
    #[value(hide = true)]
    Fp8,
    /// 8-bit floats of one kind.
    #[value(name = "fp8_e4m3", hide = true)]
    Fp8E4m3,
    /// And of the other.
    #[value(name = "fp8_e5m2", hide = true)]
    Fp8E5m2,
}

/// The paged KV cache.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct MemoryArgs {
    /// What keys and values are cached as [default: auto].
    #[arg(long, env = "LOCKSTEP_KV_CACHE_DTYPE", value_name = "TYPE", help_heading = HEADING)]
    pub kv_cache_dtype: Option<KvCacheDtypeArg>,
    /// Tokens per page [default: 16].
    ///
    /// Prefixes are shared in whole pages; larger pages read faster.
    #[arg(long, env = "LOCKSTEP_PAGE_SIZE", value_name = "TOKENS", value_parser = positive,
          help_heading = HEADING)]
    pub page_size: Option<usize>,
    /// Tokens in the cache of each DP rank [default: as many as fit, at most its running
    /// requests × context].
    #[arg(long, env = "LOCKSTEP_MAX_TOTAL_TOKENS", value_name = "TOKENS", value_parser = positive,
          help_heading = HEADING)]
    pub max_total_tokens: Option<usize>,
    /// States of recurrent layers in each DP rank, one for each of its running requests and the
    /// others for shared prefixes [default: as many as fit by --mamba-full-memory-ratio].
    ///
    /// Nodes must have equally many: with several, the default is two for each running request.
    #[arg(long, env = "LOCKSTEP_MAX_MAMBA_CACHE_SIZE", value_name = "STATES",
          value_parser = positive, help_heading = HEADING)]
    pub max_mamba_cache_size: Option<usize>,
    /// Memory of states of recurrent layers over the memory of cached tokens [default: 0.9].
    ///
    /// An error with --max-mamba-cache-size, --max-total-tokens, --disable-radix-cache or several
    /// nodes, which decide the number of states without it.
    #[arg(long, env = "LOCKSTEP_MAMBA_FULL_MEMORY_RATIO", value_name = "RATIO",
          help_heading = HEADING)]
    pub mamba_full_memory_ratio: Option<f64>,
    /// Share of the memory for weights and cache; the rest stays free [default: 0.85].
    #[arg(long, env = "LOCKSTEP_MEM_FRACTION_STATIC", value_name = "FRACTION",
          help_heading = HEADING)]
    pub mem_fraction_static: Option<f64>,
    /// Forget the KV cache of finished requests instead of sharing prefixes.
    #[arg(long, env = "LOCKSTEP_DISABLE_RADIX_CACHE", help_heading = HEADING)]
    pub disable_radix_cache: bool,
}
