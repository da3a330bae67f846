use crate::ConfigError;

/// SGLang's options that people will try and that this version does not have.
/// They are known so that the error can say what to do.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RefusedArgs {
    #[arg(long, hide = true)]
    speculative_algorithm: Option<String>,
    #[arg(long, hide = true)]
    speculative_draft_model_path: Option<String>,
    #[arg(long, hide = true)]
    speculative_num_steps: Option<String>,
    #[arg(long, hide = true)]
    speculative_eagle_topk: Option<String>,
    #[arg(long, hide = true)]
    speculative_num_draft_tokens: Option<String>,
    #[arg(long, alias = "dp", alias = "data-parallel-size", hide = true)]
    dp_size: Option<String>,
    #[arg(long, alias = "pp", alias = "pipeline-parallel-size", hide = true)]
    pp_size: Option<String>,
    #[arg(long, alias = "ep", alias = "expert-parallel-size", hide = true)]
    ep_size: Option<String>,
    #[arg(long, hide = true)]
    enable_dp_attention: bool,
    #[arg(long, hide = true)]
    quantization: Option<String>,
    #[arg(long, hide = true)]
    kv_cache_dtype: Option<String>,
    #[arg(long, hide = true)]
    trust_remote_code: bool,
}

impl RefusedArgs {
    /// The error for the first refused option that was given. A parallel size
    /// of 1 and a cache type of `auto` say what is done anyway and pass.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        const SPECULATION: &str = "leave the speculative options out; decoding runs without drafts";
        const TP: &str = "use --tp-size, or run one server per replica behind a gateway";
        let given = |value: &Option<String>| value.is_some();
        let many = |value: &Option<String>| value.as_deref().is_some_and(|v| v != "1");
        let table = [
            (
                given(&self.speculative_algorithm),
                "--speculative-algorithm",
                SPECULATION,
            ),
            (
                given(&self.speculative_draft_model_path),
                "--speculative-draft-model-path",
                SPECULATION,
            ),
            (
                given(&self.speculative_num_steps),
                "--speculative-num-steps",
                SPECULATION,
            ),
            (
                given(&self.speculative_eagle_topk),
                "--speculative-eagle-topk",
                SPECULATION,
            ),
            (
                given(&self.speculative_num_draft_tokens),
                "--speculative-num-draft-tokens",
                SPECULATION,
            ),
            (many(&self.dp_size), "--dp-size", TP),
            (many(&self.pp_size), "--pp-size", TP),
            (
                many(&self.ep_size),
                "--ep-size",
                "experts are not served; use a dense model",
            ),
            (self.enable_dp_attention, "--enable-dp-attention", TP),
            (
                given(&self.quantization),
                "--quantization",
                "use an unquantized model; --dtype bfloat16 halves the size of a float32 one",
            ),
            (
                self.kv_cache_dtype.as_deref().is_some_and(|v| v != "auto"),
                "--kv-cache-dtype",
                "the cache has the type of --dtype",
            ),
            (
                self.trust_remote_code,
                "--trust-remote-code",
                "code from a model folder is never run",
            ),
        ];
        match table.into_iter().find(|(refused, ..)| *refused) {
            Some((_, option, remedy)) => Err(ConfigError::Unsupported { option, remedy }),
            None => Ok(()),
        }
    }
}
