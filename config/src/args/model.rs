use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValue;

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

/// What weight matrices can be rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum QuantizationArg {
    /// Weights of --dtype.
    None,
    /// 8-bit integers with a scale for every 128 weights: half of bfloat16.
    #[value(alias = "w8a8_int8")]
    Int8,
    /// 4-bit integers with a scale for every 32 weights; the tables of tokens
    /// stay int8.
    Int4,
}

/// Where weights can come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFormatArg {
    /// The safetensors of the model's folder, or its GGUF file.
    Auto,
    /// The same.
    Safetensors,
    /// Nowhere: random weights, for measurements.
    Dummy,
    /// One of another engine, refused with a remedy.
    Other(&'static str),
}

impl ValueEnum for LoadFormatArg {
    fn value_variants<'a>() -> &'a [Self] {
        use LoadFormatArg::{Auto, Dummy, Other, Safetensors};
        &[
            Auto,
            Safetensors,
            Dummy,
            Other("pt"),
            Other("npcache"),
            Other("hf"),
            Other("mistral"),
            Other("gguf"),
            Other("bitsandbytes"),
            Other("sharded_state"),
            Other("layered"),
            Other("tensorizer"),
            Other("runai_streamer"),
            Other("fastsafetensors"),
            Other("remote"),
            Other("remote_instance"),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Auto => (
                "auto",
                "The safetensors of the model's folder, or its GGUF file",
            ),
            Self::Safetensors => ("safetensors", "The same"),
            Self::Dummy => (
                "dummy",
                "Nowhere: random weights, for measurements. The folder needs none then, only \
                 config.json, and a tokenizer where texts come in",
            ),
            Self::Other(name) => return Some(PossibleValue::new(*name).hide(true)),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// Which model, and how it is computed.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ModelArgs {
    /// A model: its folder, a GGUF file, or its name on the Hugging Face Hub, such as
    /// Qwen/Qwen2.5-0.5B-Instruct.
    #[arg(long, alias = "model", env = "LOCKSTEP_MODEL_PATH", value_name = "MODEL",
          long_help = model_path_help(), help_heading = HEADING)]
    pub model_path: Option<PathBuf>,
    /// Branch, tag or commit of a model that is named [default: main].
    #[arg(long, env = "LOCKSTEP_REVISION", value_name = "REVISION", help_heading = HEADING)]
    pub revision: Option<String>,
    /// The model's name in the API; of several, answers give the first [default: its name on the
    /// hub, or the folder's].
    #[arg(long, env = "LOCKSTEP_SERVED_MODEL_NAME", value_name = "NAME", num_args = 1..,
          value_delimiter = ',', help_heading = HEADING)]
    pub served_model_name: Vec<String>,
    /// Where weights come from [default: auto].
    ///
    /// With dummy a draft model's weights are random too. The same shapes get the same
    /// weights, however they are split, so that a draft like its target drafts what it
    /// says.
    #[arg(long, env = "LOCKSTEP_LOAD_FORMAT", value_name = "FORMAT", help_heading = HEADING)]
    pub load_format: Option<LoadFormatArg>,
    /// Type of weights and cache, and of the values they are multiplied with [default: auto].
    #[arg(long, env = "LOCKSTEP_DTYPE", value_name = "TYPE", help_heading = HEADING)]
    pub dtype: Option<DtypeArg>,
    /// Round the weights to integers while they are loaded [default: none].
    ///
    /// Any checkpoint that can be served can be rounded. The inputs of a
    /// rounded matrix are rounded to 8 bits, token by token; --dtype then decides
    /// over attention and its cache alone.
    #[arg(long, env = "LOCKSTEP_QUANTIZATION", value_name = "TYPE", help_heading = HEADING)]
    pub quantization: Option<QuantizationArg>,
    /// Keep packed weights in this folder and start from them next time [default: off].
    ///
    /// One file per rank, as large as its weights, for every model, quantization
    /// and split that was started. Delete files that are no longer wanted. For a
    /// GPU it keeps compiled kernels instead.
    #[arg(long, env = "LOCKSTEP_WEIGHT_CACHE", value_name = "DIR", help_heading = HEADING)]
    pub weight_cache: Option<PathBuf>,
    /// Longest prompt plus output, tokens [default: the model's, less where memory is short].
    #[arg(long, alias = "max-model-len", env = "LOCKSTEP_CONTEXT_LENGTH", value_name = "TOKENS",
          value_parser = positive, help_heading = HEADING)]
    pub context_length: Option<usize>,
}

fn model_path_help() -> String {
    format!(
        "A model: its folder, a GGUF file, or its name on the Hugging Face Hub, such as \
         Qwen/Qwen2.5-0.5B-Instruct.\n\n\
         A folder has config.json, safetensors and tokenizer.json; if there is one of that name, \
         it is meant. Of a name, what the cache lacks is loaded first, into the cache of all the \
         hub's programs. HF_HOME or HF_HUB_CACHE says where that is, HF_TOKEN or the token file \
         who asks, HF_ENDPOINT which hub, HF_HUB_OFFLINE=1 to take what is there.\n\n\
         Served are {}. Without this flag the demo model inside the program is served.",
        lockstep_model_folder::served()
    )
}
