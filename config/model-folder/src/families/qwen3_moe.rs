//! Qwen3-MoE: Qwen3's attention, and experts in all layers but the ones that are named dense.

use lockstep_types::{
    ExpertsNames, LayerSpec, Mlp, ModelConfigError, QkNorm, Routing, TensorNames,
};
use serde_json::json;

use super::{Family, Traits, dense::Dense, experts, window::Windows};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    class: || {
        json!({
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &[QK_NORM],
        ..Traits::LLAMA
    },
    layers,
};

const QWEN3_MOE: Dense = Dense {
    qk_norm: QkNorm::PerHead,
    windows: Windows::IfUsed,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

/// Keys for the number of experts: of Qwen, and of transformers 5.
const COUNTS: [&str; 2] = ["num_experts", "num_local_experts"];
/// Number of experts where no key says it, as in the family's class.
const COUNT: usize = 128;
/// Key of Qwen3-Coder for the norms of q and k, which all models of the family have.
const QK_NORM: &str = "use_qk_norm";
/// Key for the layers that are dense in any case.
const DENSE: &str = "mlp_only_layers";

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    if !config.flag(QK_NORM, true)? {
        return Err(config.unsupported(QK_NORM, "the family has these norms; remove the key"));
    }
    let mut config = config.clone();
    if COUNTS.iter().all(|key| config.get(key).is_none()) {
        config.put(COUNTS[0], COUNT.into());
    }
    let config = &config;
    let renormalized = config.flag("norm_topk_prob", false)?;
    let experts = experts::read(
        config,
        &COUNTS,
        "moe_intermediate_size",
        Routing::softmax(renormalized),
        ExpertsNames::of_mlp(),
    )?;
    let (sparse, gated) = (is_sparse(config)?, QWEN3_MOE.gated(config)?);
    QWEN3_MOE.layers_with(config, |number| match sparse(number) {
        true => Mlp::Experts(experts.clone()),
        false => gated.clone(),
    })
}

/// Reads which layers have experts, by their numbers.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged.
pub(super) fn is_sparse(config: &Raw) -> Result<impl Fn(usize) -> bool + use<>, ModelConfigError> {
    let step = config.size("decoder_sparse_step")?.unwrap_or(1);
    let dense = dense_layers(config)?;
    Ok(move |number: usize| (number + 1).is_multiple_of(step) && !dense.contains(&number))
}

/// Reads the numbers of the layers that are dense in any case.
fn dense_layers(config: &Raw) -> Result<Vec<usize>, ModelConfigError> {
    let Some(value) = config.get(DENSE) else {
        return Ok(Vec::new());
    };
    let numbers = value.as_array().map(|all| {
        let numbers = all.iter().map(|each| usize::try_from(each.as_u64()?).ok());
        numbers.collect::<Option<Vec<_>>>()
    });
    let wrong = || config.wrong(DENSE, format!("is {value}, not a list of layers"));
    numbers.flatten().ok_or_else(wrong)
}
