//! Granite 4: Granite's factors, layers of Mamba-2 between layers of attention, and an MLP that
//! every position goes through, beside experts or alone.

use lockstep_types::{
    Activation, ExpertsSpec, GatedMlpNames, GatedMlpSpec, LayerSpec, Mixer, Mlp, ModelConfigError,
    RopeConfig, Routing, SharedExpert, TensorNames,
};
use serde_json::{Value, json};

use super::dense::{Dense, depth};
use super::{Family, Traits, experts, granite, granite_moe, layer_types, mamba2};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "GraniteMoeHybridForCausalLM",
    model_type: "granitemoehybrid",
    class: || {
        json!({
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 1024,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        multipliers: granite::multipliers,
        keys: &[
            "attention_multiplier",
            "embedding_multiplier",
            // Of training.
            "init_method",
            "logits_scaling",
            // Of a chunkwise form, which has other sums.
            "mamba_chunk_size",
            "mamba_conv_bias",
            "mamba_d_conv",
            WIDTH,
            "mamba_d_state",
            EXPAND,
            "mamba_n_groups",
            HEADS,
            "mamba_proj_bias",
            POSITIONS,
            "residual_multiplier",
            SHARED,
            "time_step_limit",
        ],
        only: || json!({"normalization_function": "rmsnorm"}),
        ..Traits::LLAMA
    },
    layers,
};

const HEADS: &str = "mamba_n_heads";
const WIDTH: &str = "mamba_d_head";
/// Key for the width of all heads together, over that of the residual stream.
const EXPAND: &str = "mamba_expand";
/// Key for the width of the MLP that every position goes through.
const SHARED: &str = "shared_intermediate_size";
/// Key for the rotation of attention.
const POSITIONS: &str = "position_embedding_type";
/// Names of kinds of layers, in files of several ages, and if they are recurrent.
const KINDS: [(&str, bool); 4] = [
    ("attention", false),
    ("full_attention", false),
    ("linear_attention", true),
    ("mamba", true),
];
const KEYS: mamba2::Keys = mamba2::Keys {
    heads: HEADS,
    head_dim: WIDTH,
    groups: "mamba_n_groups",
    state_dim: "mamba_d_state",
    taps: "mamba_d_conv",
    convolution_bias: "mamba_conv_bias",
    bias: "mamba_proj_bias",
};

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let depth = depth(config)?;
    let recurrent = layer_types::recurrent(config, depth, &KINDS)?;
    // A file without the list has Mamba-2 in all layers.
    let recurrent = recurrent.unwrap_or_else(|| vec![true; depth]);
    if !recurrent.contains(&false) {
        let message = "has no layer with attention, of which a model needs one";
        return Err(config.wrong(layer_types::KEY, message));
    }
    let mlp = mlp(config)?;
    let mut attentions = config.clone();
    attentions.put(layer_types::KEY, Value::Null);
    let layers = Dense::LLAMA.layers_with(&attentions, |_| mlp.clone())?;
    let mut layers = granite::scaled(config, layers)?;
    let rotates = rotates(config)?;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        if !rotates {
            attention.rope = RopeConfig::unrotated();
        }
    }
    if recurrent.contains(&true) {
        let mamba = mamba2::read(config, &KEYS, head_dim(config)?, "mamba.")?;
        let recurrent = layers
            .iter_mut()
            .zip(recurrent)
            .filter(|(_, recurrent)| *recurrent);
        recurrent.for_each(|(layer, _)| layer.mixer = Mixer::Mamba2(mamba.clone()));
    }
    Ok(layers)
}

/// Says if queries and keys are rotated: in no model with Mamba-2 that was published.
fn rotates(config: &Raw) -> Result<bool, ModelConfigError> {
    match config.text(POSITIONS)? {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(_) => Err(config.unsupported(POSITIONS, "served are \"rope\" and \"nope\"")),
    }
}

/// Reads the width of a head of Mamba-2: all heads together are a multiple of the residual stream.
fn head_dim(config: &Raw) -> Result<usize, ModelConfigError> {
    let heads = config.required(HEADS)?;
    let expand = config.required(EXPAND)?;
    let all = expand.saturating_mul(config.required("hidden_size")?);
    let auto = matches!(config.get(WIDTH), Some(Value::String(text)) if text == "auto");
    let width = match config.get(WIDTH).filter(|_| !auto) {
        Some(_) => config.required(WIDTH)?,
        None => all / heads,
    };
    if width.saturating_mul(heads) != all {
        let message = format!("is {expand}, and {heads} heads of {width} are no {all} columns");
        return Err(config.wrong(EXPAND, message));
    }
    Ok(width)
}

/// Reads the MLP of all layers: experts with one that every position goes through, or that alone.
fn mlp(config: &Raw) -> Result<Mlp, ModelConfigError> {
    let width = config.required(SHARED)?;
    let names = GatedMlpNames {
        gate: "shared_mlp.input_linear".to_owned(),
        up: "shared_mlp.input_linear".to_owned(),
        down: "shared_mlp.output_linear".to_owned(),
    };
    let counts = ["num_local_experts", "num_experts"];
    if counts
        .iter()
        .all(|key| config.count(key).is_ok_and(|count| count.unwrap_or(0) == 0))
    {
        return Ok(Mlp::Gated(GatedMlpSpec {
            width,
            activation: Activation::Silu,
            bias: false,
            names,
        }));
    }
    let (routing, inside) = (Routing::softmax(true), granite_moe::names());
    let spec = experts::read(config, &counts, "intermediate_size", routing, inside)?;
    if !width.is_multiple_of(spec.width) {
        let remedy = format!(
            "with experts it is served in multiples of their width, {}",
            spec.width
        );
        return Err(config.unsupported(SHARED, remedy));
    }
    Ok(Mlp::Experts(ExpertsSpec {
        shared: Some(Box::new(SharedExpert {
            width,
            gate: None,
            names,
        })),
        ..spec
    }))
}
