//! Layers of Gated DeltaNet between layers of gated attention, as Qwen3-Next and Qwen3.5 have them.

use lockstep_types::{
    ExpertsSpec, GatedDeltaInputs, GatedDeltaNames, GatedDeltaSpec, GatedMlpNames, LayerSpec,
    Mixer, Mlp, ModelConfigError, QkNorm, SharedExpert,
};
use serde_json::Value;

use super::dense::{Dense, depth};
use super::layer_types;
use crate::raw::Raw;

/// Keys that such families have beside those of others.
pub(super) const KEYS: [&str; 11] = [
    INTERVAL,
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    // The model's own draft layer.
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "num_nextn_predict_layers",
    SHARED,
    // The text model of a wrapper without images.
    "language_model_only",
];

/// Key for the distance between layers with attention.
const INTERVAL: &str = "full_attention_interval";
/// Key for the width of the shared expert.
const SHARED: &str = "shared_expert_intermediate_size";

/// Names of kinds of layers, and if they are recurrent.
const KINDS: [(&str, bool); 2] = [("full_attention", false), ("linear_attention", true)];

/// Properties of the layers with attention.
pub(super) const GATED: Dense = Dense {
    qk_norm: QkNorm::PerHead,
    partly_rotated: true,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

/// Reads layers whose MLPs are `mlp` of their numbers, and whose recurrent layers have the
/// projections `inputs`.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for a feature that is not served.
pub(super) fn layers(
    config: &Raw,
    inputs: GatedDeltaInputs,
    mlp: impl Fn(usize) -> Mlp,
) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let recurrent = recurrent(config)?;
    let delta = spec(config, inputs)?;
    let mut attentions = config.clone();
    attentions.put(layer_types::KEY, Value::Null);
    let mut layers = GATED.layers_with(&attentions, mlp)?;
    for (layer, recurrent) in layers.iter_mut().zip(recurrent) {
        if recurrent {
            layer.mixer = Mixer::GatedDelta(delta.clone());
        } else if let Some(attention) = layer.attention_mut() {
            attention.output_gate = true;
        }
    }
    Ok(layers)
}

/// Says of each layer if it is recurrent: all are but every fourth one, if neither `layer_types` nor
/// an interval is given.
fn recurrent(config: &Raw) -> Result<Vec<bool>, ModelConfigError> {
    let depth = depth(config)?;
    let interval = config.size(INTERVAL)?.unwrap_or(4);
    let found = match layer_types::recurrent(config, depth, &KINDS)? {
        Some(found) => found,
        None => (0..depth)
            .map(|layer| !(layer + 1).is_multiple_of(interval))
            .collect(),
    };
    if !found.contains(&false) {
        let message = format!(
            "leaves no layer with attention, of which a model needs one: see `{}`",
            layer_types::KEY
        );
        return Err(config.wrong(INTERVAL, message));
    }
    Ok(found)
}

/// Reads the sizes of recurrent layers.
fn spec(config: &Raw, inputs: GatedDeltaInputs) -> Result<GatedDeltaSpec, ModelConfigError> {
    let [key_heads, value_heads] = ["linear_num_key_heads", "linear_num_value_heads"];
    let heads = config.required(key_heads)?;
    let values = config.required(value_heads)?;
    if !values.is_multiple_of(heads) {
        let message = format!("is {values}, which {heads} key heads do not divide");
        return Err(config.wrong(value_heads, message));
    }
    let width = |key: &str| {
        let width = config.required(key)?;
        match width.is_multiple_of(GatedDeltaSpec::UNIT) {
            true => Ok(width),
            false => Err(config.unsupported(key, "heads are served in multiples of 16 columns")),
        }
    };
    let taps_key = "linear_conv_kernel_dim";
    let taps = config.required(taps_key)?;
    if !(2..=GatedDeltaSpec::MOST_TAPS).contains(&taps) {
        let remedy = format!("served are 2 to {} taps", GatedDeltaSpec::MOST_TAPS);
        return Err(config.unsupported(taps_key, remedy));
    }
    Ok(GatedDeltaSpec {
        key_heads: heads,
        value_heads: values,
        key_dim: width("linear_key_head_dim")?,
        value_dim: width("linear_value_head_dim")?,
        taps,
        names: GatedDeltaNames {
            inputs,
            ..GatedDeltaNames::default()
        },
    })
}

/// Gives `experts` the shared one with a gate, if the config has one.
///
/// # Errors
/// [`ModelConfigError`]: the width of the shared expert is no number.
pub(super) fn with_shared(
    config: &Raw,
    experts: ExpertsSpec,
) -> Result<ExpertsSpec, ModelConfigError> {
    let width = config.count(SHARED)?.unwrap_or(0);
    Ok(ExpertsSpec {
        shared: (width > 0).then(|| {
            Box::new(SharedExpert {
                width,
                gate: Some("mlp.shared_expert_gate".to_owned()),
                names: GatedMlpNames::below("mlp.shared_expert."),
            })
        }),
        ..experts
    })
}
