//! From `config.json` to [`ModelConfig`].

use std::path::Path;

use lockstep_files::shown;
use lockstep_types::{Architecture, LoadFormat, ModelConfig, ModelConfigError};
use serde_json::{Map, Value};

use crate::raw::Raw;
use crate::{head, tokenizer};

mod rope;
mod window;

/// Parameters of the largest model that is believed: beyond it sizes are damage.
const LARGEST_MODEL: f64 = 1e14;
/// Layers of the deepest model that is believed. Layers are listed one by one.
const DEEPEST_MODEL: usize = 10_000;

/// Reads a Hugging Face model folder, as written by transformers 4 and 5.
///
/// # Errors
/// When a file is missing or damaged, or the model needs something that is
/// not served; the error names the key and the remedy.
pub fn load(dir: &Path) -> Result<ModelConfig, ModelConfigError> {
    load_for(dir, None)
}

/// As [`load`], for texts of at most `context_length` tokens:
/// a model with a sliding window is served where none of them fills it.
///
/// # Errors
/// [`ModelConfigError`]: a file is missing or damaged, or the model needs something
/// that is not served, such as a window that a text would fill.
pub fn load_for(
    dir: &Path,
    context_length: Option<usize>,
) -> Result<ModelConfig, ModelConfigError> {
    let described = Described::of(dir, context_length)?;
    Ok(described.with_weights()?.with_tokenizer()?.model)
}

/// What a folder says of its model.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The model.
    pub model: ModelConfig,
    /// What whoever serves it should know.
    pub notes: Vec<String>,
}

impl Described {
    /// What `config.json` and `generation_config.json` say, for texts of at most
    /// `context_length` tokens.
    ///
    /// # Errors
    /// Those of [`load_for`].
    pub fn of(dir: &Path, context_length: Option<usize>) -> Result<Self, ModelConfigError> {
        let config = Raw::read(dir, "config.json")?;
        let architecture = architecture(&config)?;
        refuse(&config, architecture)?;
        let model = build(dir, &config, architecture)?;
        let context = context_length.unwrap_or(model.max_position_embeddings);
        window::check(&config, architecture, model.num_layers, context)?;
        let notes = Vec::new();
        Ok(Self { model, notes })
    }

    /// With what the weights say of the output head: where `config.json` ties it to the
    /// embedding, and another one is stored, that is the head, as in transformers 5 and vLLM.
    /// Two tables that are equal are read whole, and others up to where they differ.
    ///
    /// # Errors
    /// [`ModelConfigError::Malformed`] where the tables can't be read. Weights that are missing
    /// or damaged are told by whoever loads them.
    pub fn with_weights(mut self) -> Result<Self, ModelConfigError> {
        let dir = &self.model.path;
        if self.model.tie_word_embeddings
            && head::differs(dir).map_err(|error| ModelConfigError::Malformed {
                path: dir.clone(),
                message: format!("its weights can't be read: {}", shown(&error.to_string())),
            })?
        {
            self.model.tie_word_embeddings = false;
            self.notes.push(
                "the stored output head (lm_head.weight) is served, as it differs from the \
                 embedding, though config.json has `tie_word_embeddings` true; set that to false"
                    .to_owned(),
            );
        }
        Ok(self)
    }

    /// With the tokenizer's own end token, which ends texts besides those of
    /// `generation_config.json` and `config.json`, as in vLLM, SGLang and llama.cpp. One that
    /// is in no vocabulary is never sampled, so it ends nothing.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a file of the tokenizer can't be read.
    pub fn with_tokenizer(self) -> Result<Self, ModelConfigError> {
        let Self { model, mut notes } = self;
        let own = tokenizer::end_token(&model.path)?;
        let id = own.as_ref().and_then(|token| token.id);
        let id = id.filter(|id| (*id as usize) < model.vocab_size);
        if let (Some(token), None) = (&own, id) {
            notes.push(format!(
                "the tokenizer's `eos_token` {} ends nothing: it is not in the model's vocabulary",
                shown(&format!("{:?}", token.text))
            ));
        }
        let model = model.with_tokenizer_eos(id);
        if model.eos_token_ids.is_empty() {
            notes.push(
                "no token ends an answer, as no file of the model names one: give \
                 generation_config.json an `eos_token_id`, or requests `stop_token_ids`"
                    .to_owned(),
            );
        }
        Ok(Self { model, notes })
    }
}

/// Reads the `config.json` of a draft head, whose layer is a Llama's,
/// whatever its architecture is called.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for what is not served.
pub(crate) fn head(dir: &Path, config: &Raw) -> Result<ModelConfig, ModelConfigError> {
    refuse(config, Architecture::Llama)?;
    build(dir, config, Architecture::Llama)
}

fn build(
    dir: &Path,
    config: &Raw,
    architecture: Architecture,
) -> Result<ModelConfig, ModelConfigError> {
    let hidden_size = config.required("hidden_size")?;
    let num_heads = config.required("num_attention_heads")?;
    let (num_kv_heads, head_dim) = heads(config, architecture, hidden_size, num_heads)?;
    let vocab_size = config.required("vocab_size")?;
    let bias = config.flag("attention_bias", false)?;
    let (eos_token_ids, bos_token_id) = special_tokens(dir, config, vocab_size)?;
    let model = ModelConfig {
        path: dir.to_owned(),
        load_format: LoadFormat::Auto,
        architecture,
        hidden_size,
        num_layers: config.required("num_hidden_layers")?,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: config.required("intermediate_size")?,
        vocab_size,
        max_position_embeddings: config.required("max_position_embeddings")?,
        rms_norm_eps: config.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope::read(config)?,
        // All four families default to an output head of their own.
        tie_word_embeddings: config.flag("tie_word_embeddings", false)?,
        // Qwen2 has these biases without saying so, and no others.
        qkv_bias: bias || architecture == Architecture::Qwen2,
        output_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        qk_norm: architecture == Architecture::Qwen3,
        eos_token_ids,
        tokenizer_eos_id: None,
        bos_token_id,
    };
    believable(config, &model)?;
    Ok(model)
}

fn architecture(config: &Raw) -> Result<Architecture, ModelConfigError> {
    let named = config
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(|a| a.as_str());
    let (key, name) = match named {
        Some(name) => ("architectures", name),
        None => ("model_type", config.text("model_type")?.unwrap_or_default()),
    };
    let mut all = Architecture::ALL.iter();
    let known = all.find(|known| name == known.class_name() || name == known.model_type());
    known.copied().ok_or_else(|| {
        let remedy = format!("served are {}", Architecture::served());
        config.unsupported(key, remedy)
    })
}

/// Refuses what would change results and is not computed.
fn refuse(config: &Raw, architecture: Architecture) -> Result<(), ModelConfigError> {
    let unquantized = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    if config
        .get("quantization_config")
        .is_some_and(|value| !unquantized(value))
    {
        let remedy = "use the model's unquantized release";
        return Err(config.unsupported("quantization_config", remedy));
    }
    if !matches!(
        config.text("hidden_act")?.unwrap_or("silu"),
        "silu" | "swish"
    ) {
        return Err(config.unsupported("hidden_act", "the only activation served is silu"));
    }
    for key in ["num_local_experts", "num_experts", "n_routed_experts"] {
        // Without experts it is a dense model.
        if config.get(key).is_some_and(|experts| experts != 0) {
            return Err(
                config.unsupported(key, "mixtures of experts are not served; use a dense model")
            );
        }
    }
    let without_bias: &[&str] = match architecture {
        Architecture::Llama => &[],
        Architecture::Qwen3 => &["mlp_bias"],
        Architecture::Mistral | Architecture::Qwen2 => &["attention_bias", "mlp_bias"],
    };
    for key in without_bias {
        if config.flag(key, false)? {
            return Err(config.unsupported(key, "the family has no such bias; remove the key"));
        }
    }
    Ok(())
}

/// Key/value heads and the width of a head.
fn heads(
    config: &Raw,
    architecture: Architecture,
    hidden_size: usize,
    num_heads: usize,
) -> Result<(usize, usize), ModelConfigError> {
    const KV: &str = "num_key_value_heads";
    // What transformers assumes where the key is absent; null means "as many as heads".
    let absent = match architecture {
        Architecture::Llama => num_heads,
        Architecture::Mistral => 8,
        Architecture::Qwen2 | Architecture::Qwen3 => 32,
    };
    let num_kv_heads = match config.size(KV)? {
        Some(heads) => heads,
        None if config.has(KV) => num_heads,
        None => absent,
    };
    if !num_heads.is_multiple_of(num_kv_heads) {
        let message = format!("is {num_kv_heads}, which does not divide {num_heads} heads");
        return Err(config.wrong(KV, message));
    }
    let head_dim = match config.size("head_dim")? {
        Some(width) => width,
        None if architecture == Architecture::Qwen3 && !config.has("head_dim") => 128,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let message = format!("is missing, and {num_heads} heads do not divide {hidden_size}");
            return Err(config.wrong("head_dim", message));
        }
    };
    if !head_dim.is_multiple_of(2) {
        let message = format!("is {head_dim}; rotary embedding needs an even width");
        return Err(config.wrong("head_dim", message));
    }
    Ok((num_kv_heads, head_dim))
}

/// End tokens, sorted and within the vocabulary, and the begin token.
fn special_tokens(
    dir: &Path,
    config: &Raw,
    vocab_size: usize,
) -> Result<(Vec<u32>, Option<u32>), ModelConfigError> {
    let mut ends = config.token_ids("eos_token_id")?;
    let mut bos = config.token_ids("bos_token_id")?;
    if let Some(generation) = Raw::read_optional(dir, "generation_config.json")? {
        ends.extend(generation.token_ids("eos_token_id")?);
        bos.extend(generation.token_ids("bos_token_id")?);
    }
    // A token beyond the vocabulary is never sampled, so it ends nothing.
    let known = |id: &u32| (*id as usize) < vocab_size;
    ends.retain(known);
    ends.sort_unstable();
    ends.dedup();
    Ok((ends, bos.into_iter().find(known)))
}

/// Rejects sizes whose products would overflow.
fn believable(config: &Raw, model: &ModelConfig) -> Result<(), ModelConfigError> {
    if model.num_layers > DEEPEST_MODEL {
        let message = format!("is {}, beyond any model's layers", model.num_layers);
        return Err(config.wrong("num_hidden_layers", message));
    }
    let [hidden, heads, width, mlp, layers, vocab] = [
        model.hidden_size,
        model.num_heads,
        model.head_dim,
        model.intermediate_size,
        model.num_layers,
        model.vocab_size,
    ]
    .map(|size| size as f64);
    let parameters = layers * hidden * (4.0 * heads * width + 3.0 * mlp) + 2.0 * vocab * hidden;
    if parameters > LARGEST_MODEL {
        let message = format!("and other sizes amount to {parameters:.0e} parameters");
        return Err(config.wrong("hidden_size", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
