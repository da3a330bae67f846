use clap::builder::FalseyValueParser;

use super::positive;

const HEADING: &str = "KV cache";

/// The paged KV cache.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct MemoryArgs {
    /// Tokens per page [default: 16].
    ///
    /// Prefixes are shared in whole pages; larger pages read faster.
    #[arg(long, env = "LOCKSTEP_PAGE_SIZE", value_name = "TOKENS", value_parser = positive,
          help_heading = HEADING)]
    pub page_size: Option<usize>,
    /// Tokens in the cache [default: as many as fit, at most running requests × context].
    #[arg(long, env = "LOCKSTEP_MAX_TOTAL_TOKENS", value_name = "TOKENS", value_parser = positive,
          help_heading = HEADING)]
    pub max_total_tokens: Option<usize>,
    /// Share of the memory for weights and cache; the rest stays free [default: 0.85].
    #[arg(long, env = "LOCKSTEP_MEM_FRACTION_STATIC", value_name = "FRACTION",
          help_heading = HEADING)]
    pub mem_fraction_static: Option<f64>,
    /// Forget the KV cache of finished requests instead of sharing prefixes.
    #[arg(long, env = "LOCKSTEP_DISABLE_RADIX_CACHE", value_parser = FalseyValueParser::new(),
          help_heading = HEADING)]
    pub disable_radix_cache: bool,
}
