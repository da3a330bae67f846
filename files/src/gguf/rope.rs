//! Rotation of queries and keys, as a GGUF file describes it: keys, and lists among the tensors.

use serde_json::{Value, json};

use super::error::GgufError;
use super::keys::Keys;
use super::parts::Parts;
use crate::{on_reader_thread, read_exact_at};

/// Lists of divisors of each pair's frequency: one for all texts, and those of LongRoPE.
const ALWAYS: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";
/// Largest number of divisors; no head has as many pairs.
const MOST: usize = 1 << 14;

/// Returns true for the name of a list of divisors, which is no weight.
pub(crate) fn is_list(tensor: &str) -> bool {
    [ALWAYS, LONG, SHORT].contains(&tensor)
}

/// Returns the parameters as `rope_scaling` of `config.json` has them; null if there are none.
///
/// # Errors
/// [`GgufError`]: a key or a list is damaged, or asks for a rotation that is not served.
pub(super) fn scaling(keys: &Keys<'_>) -> Result<Value, GgufError> {
    let number = |key: &str| keys.number(&format!("rope.scaling.{key}"));
    let kind = keys.text("rope.scaling.type")?.unwrap_or("none");
    let original = keys.unsigned("rope.scaling.original_context_length")?;
    let (factor, attention) = (number("factor")?, number("attn_factor")?);
    let lists = [ALWAYS, LONG, SHORT].map(|name| divisors(keys.parts, name));
    let [always, long, short] = lists;
    let (always, long, short) = (always?, long?, short?);
    if let Some(factors) = always {
        // Divisors that hold for texts of any length are those of Llama 3.
        if long.is_some() || !["none", "linear"].contains(&kind) || factor.is_some_and(|f| f != 1.0)
        {
            return Err(keys.unserved("rope.scaling.type", "beside divisors of frequencies"));
        }
        return Ok(json!({
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": keys.unsigned("context_length")?,
            "attention_factor": 1.0,
        }));
    }
    if let (Some(long), Some(short)) = (long, short) {
        return Ok(json!({
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": original,
            "attention_factor": attention,
        }));
    }
    let older = keys.number("rope.scale_linear")?;
    match kind {
        "none" if older.is_none_or(|factor| factor == 1.0) => Ok(Value::Null),
        "none" => Ok(json!({"rope_type": "linear", "factor": older})),
        "linear" if factor == Some(1.0) => Ok(Value::Null),
        "linear" => Ok(json!({"rope_type": "linear", "factor": factor})),
        "yarn" if attention.is_none_or(|factor| factor == 1.0) => Ok(json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": number("yarn_beta_fast")?,
            "beta_slow": number("yarn_beta_slow")?,
        })),
        _ => Err(keys.unserved(
            "rope.scaling.type",
            "served are none, linear, yarn and longrope",
        )),
    }
}

/// Reads a list of divisors.
fn divisors(parts: &Parts, name: &str) -> Result<Option<Vec<f64>>, GgufError> {
    let Some((file, tensor)) = parts.tensor(name) else {
        return Ok(None);
    };
    let model = &parts.first().name;
    let count = match tensor.shape.as_slice() {
        [count] if *count <= MOST && tensor.kind.name == "F32" => *count,
        _ => {
            let reason = format!("tensor {name} is no list of up to {MOST} floats of 32 bits");
            return Err(GgufError::damaged(model, reason));
        }
    };
    let failed = |source| GgufError::Read {
        name: model.clone(),
        source,
    };
    let (file, begin) = (file.try_clone().map_err(failed)?, tensor.bytes.start);
    let bytes = on_reader_thread(move || {
        let mut bytes = vec![0; 4 * count];
        read_exact_at(&file, &mut bytes, begin)?;
        Ok(bytes)
    });
    let bytes = bytes.map_err(failed)?;
    let floats = bytes
        .as_chunks()
        .0
        .iter()
        .map(|own| f32::from_le_bytes(*own));
    let floats: Vec<f64> = floats.map(f64::from).collect();
    match floats.iter().all(|own| own.is_finite() && *own > 0.0) {
        true => Ok(Some(floats)),
        false => {
            let reason = format!("tensor {name} has a divisor that is no number above zero");
            Err(GgufError::damaged(model, reason))
        }
    }
}
