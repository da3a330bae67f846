//! Gemma 2 and 3: norms before and behind each block, with weights stored as distances from one;
//! scaled embeddings; GELU; sliding windows in some layers. Gemma 2 bounds scores and logits.
//! Gemma 3 norms queries and keys, and rotates sliding layers with a base of their own.

use half::bf16;
use lockstep_types::{
    Activation, LayerSpec, ModelConfigError, Multipliers, NormKind, Norms, QkNorm, TensorNames,
};
use serde_json::{Value, json};

use super::dense::{Dense, depth};
use super::rope::{Bases, by_type};
use super::{Family, Traits, layer_types, window::Windows};
use crate::raw::Raw;

pub(super) const GEMMA2: Family = Family {
    class_name: "Gemma2ForCausalLM",
    model_type: "gemma2",
    class: || {
        let mut class = class();
        class["vocab_size"] = 256_000.into();
        class["max_position_embeddings"] = 8192.into();
        class[LOGIT_CAP] = 30.0.into();
        class[SCORE_CAP] = 50.0.into();
        class
    },
    names,
    traits: TRAITS,
    layers: gemma2,
};

pub(super) const GEMMA3: Family = Family {
    class_name: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    class,
    names,
    traits: TRAITS,
    layers: gemma3,
};

/// Key for the bound of scores.
const SCORE_CAP: &str = "attn_logit_softcapping";
/// Key for the bound of logits.
pub(super) const LOGIT_CAP: &str = "final_logit_softcapping";
/// Key of the number whose root divides scores.
const QUERY_SCALE: &str = "query_pre_attn_scalar";
/// Keys of the interval of full layers, in older files of Gemma 3.
const PATTERNS: [&str; 2] = ["sliding_window_pattern", "_sliding_window_pattern"];
/// Key of the window in older files, beside the key that all families have.
const OLDER_WINDOW: &str = "sliding_window_size";
/// Key of a mask for training and for embeddings, by which tokens see later ones.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

const TRAITS: Traits = Traits {
    norm: NormKind::RmsUnitOffset,
    norm_eps: Traits::LLAMA.norm_eps,
    multipliers,
    keys: &[
        SCORE_CAP,
        LOGIT_CAP,
        QUERY_SCALE,
        PATTERNS[0],
        PATTERNS[1],
        OLDER_WINDOW,
        BIDIRECTIONAL,
        "cache_implementation",
        "hidden_activation",
        "rope_local_base_freq",
    ],
    ..Traits::LLAMA
};

const DENSE: Dense = Dense {
    norms: Norms::Around,
    activation: Activation::GeluTanh,
    windows: Windows::Typed,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

const NORMED: Dense = Dense {
    qk_norm: QkNorm::PerHead,
    ..DENSE
};

fn class() -> Value {
    json!({
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "tie_word_embeddings": true,
    })
}

fn names() -> TensorNames {
    TensorNames {
        mlp_norm: "pre_feedforward_layernorm".to_owned(),
        ..TensorNames::default()
    }
}

/// Reads the factor of embeddings, the root of their width. transformers rounds it to the type of
/// the weights, and so was the model trained.
pub(super) fn multipliers(config: &Raw) -> Result<Multipliers, ModelConfigError> {
    Ok(Multipliers {
        embedding: root(config, config.required("hidden_size")?)?,
        logit_softcap: config.number(LOGIT_CAP)?.map(|cap| cap as f32),
        ..Multipliers::default()
    })
}

/// Returns the root of `width`, rounded to the type of the weights.
pub(super) fn root(config: &Raw, width: usize) -> Result<f32, ModelConfigError> {
    let root = (width as f64).sqrt() as f32;
    let dtype = match config.text("dtype")? {
        Some(dtype) => Some(dtype),
        None => config.text("torch_dtype")?,
    };
    Ok(match dtype.map(|name| name.trim_start_matches("torch.")) {
        Some("bfloat16") => bf16::from_f32(root).to_f32(),
        Some("float16") => half::f16::from_f32(root).to_f32(),
        _ => root,
    })
}

fn gemma2(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let mut config = config.clone();
    let depth = depth(&config)?;
    layer_types::fill(&mut config, depth, 2);
    let softcap = config.number(SCORE_CAP)?.map(|cap| cap as f32);
    let mut layers = scaled(&config, &DENSE)?;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        attention.softcap = softcap;
    }
    Ok(layers)
}

fn gemma3(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    if config.get(SCORE_CAP).is_some() {
        let remedy = "Gemma 3 bounds no scores; remove the key";
        return Err(config.unsupported(SCORE_CAP, remedy));
    }
    let mut config = by_type(
        config,
        &Bases {
            full: 1e6,
            sliding: 1e4,
            sliding_key: "rope_local_base_freq",
        },
    )?;
    let mut interval = 6;
    for key in PATTERNS {
        interval = config.size(key)?.unwrap_or(interval);
    }
    let depth = depth(&config)?;
    layer_types::fill(&mut config, depth, interval);
    scaled(&config, &NORMED)
}

/// Reads layers whose scores are divided by the root of a number of their own.
fn scaled(config: &Raw, dense: &Dense) -> Result<Vec<LayerSpec>, ModelConfigError> {
    if config.flag(BIDIRECTIONAL, false)? {
        let remedy = "tokens see earlier tokens alone; use a model that generates text";
        return Err(config.unsupported(BIDIRECTIONAL, remedy));
    }
    let older = config.size(OLDER_WINDOW)?;
    if older.is_some() && older != config.size("sliding_window")? {
        let remedy = "`sliding_window` has another size; remove one of the two keys";
        return Err(config.unsupported(OLDER_WINDOW, remedy));
    }
    let scale = config.number(QUERY_SCALE)?.unwrap_or(256.0);
    let mut layers = dense.layers(config)?;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        attention.scale = scale.sqrt().recip() as f32;
    }
    Ok(layers)
}
