use std::path::PathBuf;

use super::positive;

const HEADING: &str = "Model";

/// Types a model can be computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DtypeArg {
    /// bfloat16, the fast choice.
    Auto,
    /// 16-bit brain float with 32-bit accumulation.
    Bfloat16,
    /// 32-bit float: twice the memory, the reference for comparisons.
    Float32,
}

/// Which model, and how it is computed.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ModelArgs {
    /// Folder of a Hugging Face model: config.json, safetensors, tokenizer.json.
    ///
    /// Served are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and
    /// Qwen3ForCausalLM. Without this flag the demo model inside the program is
    /// served.
    #[arg(long, alias = "model", env = "LOCKSTEP_MODEL_PATH", value_name = "DIR", help_heading = HEADING)]
    pub model_path: Option<PathBuf>,
    /// The model's name in the API [default: the folder's name].
    #[arg(long, env = "LOCKSTEP_SERVED_MODEL_NAME", value_name = "NAME", help_heading = HEADING)]
    pub served_model_name: Option<String>,
    /// Type of weights, cache and activations [default: auto].
    #[arg(long, env = "LOCKSTEP_DTYPE", value_name = "TYPE", help_heading = HEADING)]
    pub dtype: Option<DtypeArg>,
    /// Longest prompt plus output, tokens [default: the model's, less where memory is short].
    #[arg(long, alias = "max-model-len", env = "LOCKSTEP_CONTEXT_LENGTH", value_name = "TOKENS",
          value_parser = positive, help_heading = HEADING)]
    pub context_length: Option<usize>,
}
