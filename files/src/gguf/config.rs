//! The `config.json` and `generation_config.json` that a GGUF file stands for.

use serde_json::{Value, json};

use super::error::GgufError;
use super::keys::Keys;
use super::parts::Parts;
use super::rope;
use super::tokenizer::end_tokens;

/// Returns the `config.json`.
///
/// # Errors
/// [`GgufError`]: a key is missing or damaged, or is not served.
pub(super) fn config(parts: &Parts) -> Result<Value, GgufError> {
    let keys = Keys::of(parts)?;
    let hidden = keys.size("embedding_length")?;
    let heads = keys.size("attention.head_count")?;
    let kv_heads = match keys.header.value(&keys.key("attention.head_count_kv")) {
        Some(_) => keys.size("attention.head_count_kv")?,
        None => heads,
    };
    let head = head_dim(&keys, hidden, heads)?;
    let rotated = keys.unsigned("rope.dimension_count")?.unwrap_or(head);
    let mut config = json!({
        "architectures": [keys.architecture.class_name],
        "model_type": keys.architecture.model_type,
        "vocab_size": vocabulary(&keys)?,
        "hidden_size": hidden,
        "num_hidden_layers": keys.size("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "max_position_embeddings": keys.size("context_length")?,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon")?,
        "rope_theta": keys.number("rope.freq_base")?.unwrap_or(10_000.0),
        "rope_scaling": rope::scaling(&keys)?,
        "tie_word_embeddings": parts.tensor("output.weight").is_none(),
    });
    if rotated != head {
        config["partial_rotary_factor"] = (rotated as f64 / head as f64).into();
    }
    if keys.architecture.experts.is_empty() {
        config["intermediate_size"] = keys.size("feed_forward_length")?.into();
    }
    if keys.flag("attention.causal")? == Some(false) {
        return Err(keys.unserved("attention.causal", "use a model that generates text"));
    }
    own(&keys, &mut config)?;
    keys.check_rest()?;
    Ok(config)
}

/// Adds the keys that the model's family alone has.
fn own(keys: &Keys<'_>, config: &mut Value) -> Result<(), GgufError> {
    match keys.architecture.model_type {
        "llama" => {
            biases(keys, config)?;
            windows(keys, config, "MistralForCausalLM", "mistral")
        }
        "mixtral" => {
            config["intermediate_size"] = keys.size("feed_forward_length")?.into();
            experts(keys, config, "num_local_experts")
        }
        "qwen3_moe" => {
            // The width of dense layers, of which the architecture has none.
            config["intermediate_size"] = keys.size("feed_forward_length")?.into();
            let width = keys.size("expert_feed_forward_length")?;
            config["moe_intermediate_size"] = width.into();
            config["norm_topk_prob"] = true.into();
            experts(keys, config, "num_experts")
        }
        "gemma2" | "gemma3_text" => gemma(keys, config),
        "phi3" => {
            if let Some(window) = keys.unsigned("attention.sliding_window")? {
                config["sliding_window"] = Some(window).filter(|window| *window > 0).into();
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Biases of Llamas, which only the tensors show.
fn biases(keys: &Keys<'_>, config: &mut Value) -> Result<(), GgufError> {
    config["attention_bias"] = keys.has("attn_q.bias").into();
    config["mlp_bias"] = keys.has("ffn_up.bias").into();
    Ok(())
}

/// A window of all layers, which Mistral's family has.
fn windows(
    keys: &Keys<'_>,
    config: &mut Value,
    class_name: &str,
    model_type: &str,
) -> Result<(), GgufError> {
    let window = keys.unsigned("attention.sliding_window")?;
    if let Some(window) = window.filter(|window| *window > 0) {
        config["sliding_window"] = window.into();
        config["architectures"] = json!([class_name]);
        config["model_type"] = model_type.into();
    }
    Ok(())
}

/// Number of experts, and of those that a position goes through.
fn experts(keys: &Keys<'_>, config: &mut Value, count: &str) -> Result<(), GgufError> {
    config[count] = keys.size("expert_count")?.into();
    config["num_experts_per_tok"] = keys.size("expert_used_count")?.into();
    let others = [
        keys.unsigned("expert_shared_count")?,
        keys.unsigned("expert_shared_feed_forward_length")?,
        keys.unsigned("leading_dense_block_count")?,
    ];
    if others.into_iter().flatten().any(|other| other > 0) {
        let remedy = "all layers have experts, and none is shared";
        return Err(keys.unserved("expert_shared_count", remedy));
    }
    if keys
        .unsigned("expert_group_count")?
        .is_some_and(|groups| groups > 1)
    {
        return Err(keys.unserved("expert_group_count", "experts are in no groups"));
    }
    if keys
        .number("expert_weights_scale")?
        .is_some_and(|scale| scale != 0.0 && scale != 1.0)
    {
        return Err(keys.unserved("expert_weights_scale", "weights of experts have no factor"));
    }
    // One is the softmax, which both families have.
    match keys.unsigned("expert_gating_func")? {
        None | Some(0 | 1) => Ok(()),
        Some(_) => Err(keys.unserved("expert_gating_func", "the router's softmax alone")),
    }
}

/// Gemma's windows, bounds and factor of scores, as llama.cpp knows them by the number of layers.
fn gemma(keys: &Keys<'_>, config: &mut Value) -> Result<(), GgufError> {
    let is_third = keys.architecture.name == "gemma3";
    let layers = keys.size("block_count")?;
    let heads = keys.size("attention.head_count")?;
    let (hidden, head) = (keys.size("embedding_length")?, config["head_dim"].clone());
    // The largest models divide scores by the root of an equal share of the width.
    let by_share = layers == if is_third { 62 } else { 46 };
    config["query_pre_attn_scalar"] = match by_share {
        true => (hidden / heads.max(1)).into(),
        false => head,
    };
    // The type in which the family was trained, and to which the factor of embeddings is rounded.
    config["torch_dtype"] = "bfloat16".into();
    config["sliding_window"] = keys.unsigned("attention.sliding_window")?.into();
    let pattern = keys.unsigned("attention.sliding_window_pattern")?;
    let expected = if is_third { 6 } else { 2 };
    if pattern.is_some_and(|pattern| pattern != expected) {
        return Err(keys.unserved("attention.sliding_window_pattern", "the family's own alone"));
    }
    if is_third {
        config["rope_theta"] = keys.number("rope.freq_base")?.unwrap_or(1e6).into();
        let sliding = keys.number("rope.freq_base_swa")?.unwrap_or(1e4);
        config["rope_local_base_freq"] = sliding.into();
        config["final_logit_softcapping"] = keys.number("final_logit_softcapping")?.into();
    } else {
        for (key, theirs, class) in [
            ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", "final_logit_softcapping", 30.0),
        ] {
            config[theirs] = keys.number(key)?.unwrap_or(class).into();
        }
    }
    Ok(())
}

/// Width of a head: an equal share of the width if nothing is said. Values have the same.
fn head_dim(keys: &Keys<'_>, hidden: u64, heads: u64) -> Result<u64, GgufError> {
    let own = keys.unsigned("attention.key_length")?;
    let value = keys.unsigned("attention.value_length")?;
    let head = match own {
        Some(own) => own,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(keys.unserved("attention.head_count", "heads must divide the width")),
    };
    match value.is_none_or(|value| value == head) && head > 0 {
        true => Ok(head),
        false => Err(keys.unserved("attention.value_length", "values as wide as keys")),
    }
}

/// Rows of the table of tokens.
fn vocabulary(keys: &Keys<'_>) -> Result<usize, GgufError> {
    const TABLE: &str = "token_embd.weight";
    let table = keys.parts.tensor(TABLE);
    match table.map(|(_, tensor)| tensor.shape.as_slice()) {
        Some([rows, _]) => Ok(*rows),
        _ => {
            let reason = format!("it has no tensor {TABLE} of two dimensions");
            Err(GgufError::damaged(&keys.header.name, reason))
        }
    }
}

/// Returns the `generation_config.json`: tokens that texts begin and end with.
///
/// # Errors
/// [`GgufError`]: a key is damaged.
pub(super) fn generation(parts: &Parts) -> Result<Value, GgufError> {
    let header = parts.first();
    let mut config = json!({ "eos_token_id": end_tokens(header)? });
    if let Some(begin) = header.unsigned("tokenizer.ggml.bos_token_id")? {
        config["bos_token_id"] = begin.into();
    }
    Ok(config)
}

#[cfg(test)]
mod tests;
