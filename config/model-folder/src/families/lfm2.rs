//! LFM2: gated short convolutions between layers of attention, with dense MLPs or, in LFM2-MoE, with
//! experts behind the first layers.

use lockstep_types::{
    AttentionNames, ExpertTensors, ExpertsNames, GatedDeltaSpec, GatedMlpNames, GatedMlpSpec,
    LayerSpec, Mixer, Mlp, ModelConfigError, QkNorm, RouterWeights, Routing, ShortConvolutionNames,
    ShortConvolutionSpec, TensorNames,
};
use serde_json::{Value, json};

use super::dense::{Dense, depth};
use super::{Family, Traits, experts, layer_types};
use crate::raw::Raw;

pub(super) const DENSE: Family = Family {
    class_name: "Lfm2ForCausalLM",
    model_type: "lfm2",
    class: || {
        json!({
            "vocab_size": 65536,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 128_000,
            "norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": true,
            "conv_L_cache": 3,
            MULTIPLE: 256,
            MULTIPLIER: 1.0,
            ADJUSTED: true,
        })
    },
    names,
    traits: Traits {
        norm_eps: EPS,
        keys: &KEYS,
        only: || json!({"block_use_swiglu": true, "use_pos_enc": true}),
        ..Traits::LLAMA
    },
    layers: |config| {
        let gated = gated(config)?;
        layers(config, |_| gated.clone())
    },
};

pub(super) const EXPERTS: Family = Family {
    class_name: "Lfm2MoeForCausalLM",
    model_type: "lfm2_moe",
    class: || {
        json!({
            "vocab_size": 65536,
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 128_000,
            "norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": true,
            "conv_L_cache": 3,
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
        })
    },
    names,
    traits: Traits {
        norm_eps: EPS,
        keys: &[
            "conv_L_cache",
            "conv_bias",
            FULL,
            "norm_eps",
            "num_dense_layers",
            "routed_scaling_factor",
            "theta",
            TIED,
            "use_expert_bias",
        ],
        only: || json!({"use_pos_enc": true}),
        ..Traits::LLAMA
    },
    layers: |config| {
        let dense = config.count("num_dense_layers")?.unwrap_or(0);
        let (gated, experts) = (LFM2.gated(config)?, mixture(config)?);
        layers(config, |number| match number < dense {
            true => gated.clone(),
            false => experts.clone(),
        })
    },
};

/// Keys of the dense models. The first published files repeat sizes under other keys.
const KEYS: [&str; 19] = [
    ADJUSTED,
    "block_dim",
    WIDTH,
    MULTIPLIER,
    // Of training.
    "block_mlp_init_scale",
    MULTIPLE,
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_L_cache",
    "conv_bias",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    FULL,
    "norm_eps",
    "num_heads",
    "theta",
    TIED,
];
/// Keys that repeat other ones.
const REPEATED: [(&str, &str); 6] = [
    ("block_dim", "hidden_size"),
    ("block_norm_eps", EPS),
    ("conv_dim", "hidden_size"),
    ("conv_dim_out", "hidden_size"),
    ("num_heads", "num_attention_heads"),
    ("rms_norm_eps", EPS),
];
const EPS: &str = "norm_eps";
/// Key of the numbers of layers with attention.
const FULL: &str = "full_attn_idxs";
/// Older key of `tie_word_embeddings`.
const TIED: &str = "tie_embedding";
/// Older key of `intermediate_size`, which wins.
const WIDTH: &str = "block_ff_dim";
/// Keys by which MLPs are narrower than that.
const ADJUSTED: &str = "block_auto_adjust_ff_dim";
const MULTIPLIER: &str = "block_ffn_dim_multiplier";
const MULTIPLE: &str = "block_multiple_of";
/// Names of kinds of layers, and if they are recurrent.
const KINDS: [(&str, bool); 2] = [("full_attention", false), ("conv", true)];

const LFM2: Dense = Dense {
    qk_norm: QkNorm::PerHead,
    norm_eps: EPS,
    no_bias: &["attention_bias", "mlp_bias"],
    attention_names: || AttentionNames {
        output: "self_attn.out_proj".to_owned(),
        query_norm: "self_attn.q_layernorm".to_owned(),
        key_norm: "self_attn.k_layernorm".to_owned(),
        ..AttentionNames::default()
    },
    mlp_names: || mlp_names("feed_forward."),
    ..Dense::LLAMA
};

fn names() -> TensorNames {
    TensorNames {
        norm: "model.embedding_norm".to_owned(),
        mixer_norm: "operator_norm".to_owned(),
        mlp_norm: "ffn_norm".to_owned(),
        ..TensorNames::default()
    }
}

fn mlp_names(prefix: &str) -> GatedMlpNames {
    let name = |name: &str| format!("{prefix}{name}");
    GatedMlpNames {
        gate: name("w1"),
        up: name("w3"),
        down: name("w2"),
    }
}

/// Reads layers whose MLPs are `mlp` of their numbers.
fn layers(config: &Raw, mlp: impl Fn(usize) -> Mlp) -> Result<Vec<LayerSpec>, ModelConfigError> {
    for (key, other) in REPEATED {
        let number = |key| config.get(key).and_then(Value::as_f64);
        if config.get(key).is_some() && number(key) != number(other) {
            return Err(config.wrong(key, format!("and `{other}` differ; remove one of them")));
        }
    }
    let base = |key: &str| {
        let inside = config
            .get("rope_parameters")
            .and_then(|rope| rope.get("rope_theta"));
        inside.or_else(|| config.get(key)).and_then(Value::as_f64)
    };
    if let Some(theta) = config.get("theta")
        && theta.as_f64() != base("rope_theta")
    {
        let message = "and `rope_theta` differ; remove one of them";
        return Err(config.wrong("theta", message));
    }
    if config.get(TIED).is_some() && config.get(TIED) != config.get("tie_word_embeddings") {
        let message = "and `tie_word_embeddings` differ, which is true if it is absent";
        return Err(config.wrong(TIED, message));
    }
    let (recurrent, short) = (recurrent(config)?, convolution(config)?);
    let mut attentions = config.clone();
    attentions.put(layer_types::KEY, Value::Null);
    let mut layers = LFM2.layers_with(&attentions, mlp)?;
    let convolutions = layers
        .iter_mut()
        .zip(recurrent)
        .filter(|(_, recurrent)| *recurrent);
    convolutions.for_each(|(layer, _)| layer.mixer = Mixer::ShortConvolution(short.clone()));
    Ok(layers)
}

/// Says of each layer if it is a convolution: none is, if neither `layer_types` nor the layers with
/// attention are given.
fn recurrent(config: &Raw) -> Result<Vec<bool>, ModelConfigError> {
    let depth = depth(config)?;
    let listed = config
        .get(FULL)
        .map(|list| without_attention(config, list, depth));
    let listed = listed.transpose()?;
    let kinds = layer_types::recurrent(config, depth, &KINDS)?;
    if let (Some(listed), Some(kinds)) = (&listed, &kinds)
        && listed != kinds
    {
        let message = format!(
            "and `{}` name other layers; remove one of them",
            layer_types::KEY
        );
        return Err(config.wrong(FULL, message));
    }
    let found = kinds.or(listed).unwrap_or_else(|| vec![false; depth]);
    if !found.contains(&false) {
        let message =
            format!("leaves no layer with attention, of which a model needs one: see `{FULL}`");
        return Err(config.wrong(layer_types::KEY, message));
    }
    Ok(found)
}

/// Returns for each of `depth` layers true if `list` does not have its number.
fn without_attention(
    config: &Raw,
    list: &Value,
    depth: usize,
) -> Result<Vec<bool>, ModelConfigError> {
    let mut recurrent = vec![true; depth];
    for number in list.as_array().into_iter().flatten() {
        let layer = number
            .as_u64()
            .and_then(|number| usize::try_from(number).ok());
        let Some(of_layer) = layer.and_then(|layer| recurrent.get_mut(layer)) else {
            let message = format!(
                "has {number}, and layers are numbered from 0 to {}",
                depth - 1
            );
            return Err(config.wrong(FULL, message));
        };
        *of_layer = false;
    }
    Ok(recurrent)
}

fn convolution(config: &Raw) -> Result<ShortConvolutionSpec, ModelConfigError> {
    let taps = config.required("conv_L_cache")?;
    if !(2..=GatedDeltaSpec::MOST_TAPS).contains(&taps) {
        let remedy = format!("served are 2 to {} taps", GatedDeltaSpec::MOST_TAPS);
        return Err(config.unsupported("conv_L_cache", remedy));
    }
    Ok(ShortConvolutionSpec {
        channels: config.required("hidden_size")?,
        taps,
        bias: config.flag("conv_bias", false)?,
        names: ShortConvolutionNames::default(),
    })
}

/// Reads the MLP of dense models. It is two thirds as wide as the file says, times a factor, and
/// rounded up, unless the file says otherwise.
fn gated(config: &Raw) -> Result<Mlp, ModelConfigError> {
    let mut config = config.clone();
    if let Some(width) = config.size(WIDTH)? {
        config.put("intermediate_size", width.into());
    }
    let adjusts = config.flag(ADJUSTED, true)?;
    Ok(match LFM2.gated(&config)? {
        Mlp::Gated(gated) if adjusts => Mlp::Gated(GatedMlpSpec {
            width: adjusted(&config, gated.width)?,
            ..gated
        }),
        mlp => mlp,
    })
}

fn adjusted(config: &Raw, width: usize) -> Result<usize, ModelConfigError> {
    let factor = config.number(MULTIPLIER)?;
    let multiple = match factor {
        Some(_) => config.required(MULTIPLE)?,
        None => 1,
    };
    let exact = factor.unwrap_or(1.0) * (2 * width / 3) as f64;
    // Sizes of files are below this bound, which keeps products of sizes from overflowing.
    let bound = f64::from(i32::MAX) - multiple as f64;
    if !(1.0..bound).contains(&exact) {
        let key = factor.map_or("intermediate_size", |_| MULTIPLIER);
        return Err(config.wrong(key, format!("makes MLPs of {exact} columns")));
    }
    Ok((exact as usize).next_multiple_of(multiple))
}

/// Reads the experts. Their weights are divided by their sum alone, as engines do; transformers adds
/// a millionth to it.
fn mixture(config: &Raw) -> Result<Mlp, ModelConfigError> {
    let routing = Routing {
        weights: RouterWeights::Sigmoid,
        renormalized: config.flag("norm_topk_prob", true)?,
        factor: config.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        corrected: config.flag("use_expert_bias", true)?,
        groups: None,
    };
    let names = ExpertsNames {
        router: "feed_forward.gate".to_owned(),
        correction: "feed_forward.expert_bias".to_owned(),
        experts: ExpertTensors::Single {
            prefix: "feed_forward.experts".to_owned(),
            expert: mlp_names(""),
        },
    };
    let counts = ["num_experts", "num_local_experts"];
    let spec = experts::read(config, &counts, "moe_intermediate_size", routing, names)?;
    Ok(Mlp::Experts(spec))
}
