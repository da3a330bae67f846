//! StarCoder2: layer norms, biases everywhere, and an MLP of two projections.

use lockstep_types::{
    Activation, LayerSpec, Mlp, ModelConfigError, NormKind, PlainMlpNames, PlainMlpSpec,
    TensorNames,
};
use serde_json::json;

use super::{Family, Traits, dense::Dense, window::Windows};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Starcoder2ForCausalLM",
    model_type: "starcoder2",
    class: || {
        json!({
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            NORM_EPS: 1e-5,
            "tie_word_embeddings": true,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        norm: NormKind::Layer,
        norm_eps: NORM_EPS,
        keys: &[
            "activation_function",
            "attention_softmax_in_fp32",
            "embedding_dropout",
            "mlp_type",
            NORM_EPS,
            "norm_type",
            "residual_dropout",
            "scale_attention_softmax_in_fp32",
            "scale_attn_weights",
            "use_bias",
        ],
        ..Traits::LLAMA
    },
    layers,
};

/// Key of the norms' epsilon.
const NORM_EPS: &str = "norm_epsilon";

const STARCODER2: Dense = Dense {
    norm_eps: NORM_EPS,
    activation: Activation::GeluTanh,
    windows: Windows::Always,
    ..Dense::LLAMA
};

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    for (key, served) in [("norm_type", "layer_norm"), ("mlp_type", "default")] {
        if config.text(key)?.is_some_and(|kind| kind != served) {
            return Err(config.unsupported(key, format!("served is {served}")));
        }
    }
    let bias = config.flag("use_bias", true)?;
    let mut config = config.clone();
    config.put("attention_bias", bias.into());
    let mlp = Mlp::Plain(PlainMlpSpec {
        width: config.required("intermediate_size")?,
        activation: STARCODER2.activation,
        bias,
        names: PlainMlpNames {
            up: "mlp.c_fc".to_owned(),
            down: "mlp.c_proj".to_owned(),
        },
    });
    STARCODER2.layers_with(&config, |_| mlp.clone())
}
