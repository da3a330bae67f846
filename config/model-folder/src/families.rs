//! Families of models, one file each: the layers that their `config.json` describes, and the
//! names of their tensors. A family is data alone: no device and no checkpoint is there yet.

mod activation;
mod deepseek;
mod dense;
mod experts;
mod gated_delta;
mod gemma;
mod gemma4;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod latent;
mod layer_types;
mod lfm2;
mod llama;
mod mamba2;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod nemotron_h;
mod nextn;
mod olmo;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod qwen_vl;
mod rope;
mod smollm3;
mod starcoder2;
mod stored;
mod window;
mod wrappers;

use lockstep_types::{
    Architecture, LayerSpec, ModelConfigError, Multipliers, NormKind, PerLayerEmbeddings,
    TensorNames,
};
use serde_json::{Value, json};

use crate::raw::Raw;
pub(crate) use dense::norm_eps;
pub(crate) use nextn::{DraftLayerReader, MOST as MOST_DRAFT_LAYERS};
pub(crate) use stored::{stored_experts, stored_experts_of};
pub(crate) use wrappers::{Wrapper, stored_names};

/// A family of models, with the functions that read its `config.json`.
pub(crate) struct Family {
    /// Class name of the family, as in `architectures`.
    pub class_name: &'static str,
    /// Type name of the family, as in `model_type`.
    pub model_type: &'static str,
    /// Values of keys that `config.json` may leave out, as in the family's class in
    /// transformers. [`SIZES`] may be left out in a wrapper's `text_config` alone.
    pub class: fn() -> Value,
    /// Names of the tensors outside of blocks. Layers have the names of their blocks' tensors.
    pub names: fn() -> TensorNames,
    /// Facts about the whole model.
    pub traits: Traits,
    /// Reads the layers, from the first to the last.
    pub layers: fn(&Raw) -> Result<Vec<LayerSpec>, ModelConfigError>,
}

/// Reader of a model's per-layer embeddings.
type PerLayerReader = fn(&Raw) -> Result<Option<PerLayerEmbeddings>, ModelConfigError>;

/// Facts about the whole model that differ between families.
pub(crate) struct Traits {
    /// Kind of the norms.
    pub norm: NormKind,
    /// Key of the norms' epsilon.
    pub norm_eps: &'static str,
    /// Reads the fixed factors.
    pub multipliers: fn(&Raw) -> Result<Multipliers, ModelConfigError>,
    /// Reads the per-layer embeddings, if the model has some.
    pub per_layer: PerLayerReader,
    /// Keys that the family knows beside those of all families. A key that is not known is refused
    /// if it turns something on.
    pub keys: &'static [&'static str],
    /// Reads the model's own draft layers; `None` in families that have none.
    pub draft_layer: Option<DraftLayerReader>,
    /// Keys of which one value alone is served, with that value; any other is refused.
    pub only: fn() -> Value,
}

impl Traits {
    /// Facts of Llama, and of the families that are written as Llamas.
    pub const LLAMA: Self = Self {
        norm: NormKind::Rms,
        norm_eps: "rms_norm_eps",
        multipliers: |_| Ok(Multipliers::default()),
        per_layer: |_| Ok(None),
        keys: &[],
        draft_layer: None,
        only: || json!({}),
    };
}

/// All families that are served, decoder-only transformers. The compiler finds a family that
/// is not in the list unused.
const SERVED: &[&Family] = &[
    &deepseek::V2,
    &deepseek::V3,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma4::FAMILY,
    &glm4_moe::FAMILY,
    &glm4_moe_lite::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &granite_hybrid::FAMILY,
    &granite_moe::FAMILY,
    &lfm2::DENSE,
    &lfm2::EXPERTS,
    &llama::FAMILY,
    &minimax_m2::FAMILY,
    &ministral3::FAMILY,
    &mistral::FAMILY,
    &mistral4::FAMILY,
    &mixtral::FAMILY,
    &nemotron_h::FAMILY,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &phi3::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_5::DENSE,
    &qwen3_5::EXPERTS,
    &qwen3_moe::FAMILY,
    &qwen3_next::FAMILY,
    &smollm3::FAMILY,
    &starcoder2::FAMILY,
];

/// The family of the layers of EAGLE's heads, whatever their `config.json` names.
pub(crate) const OF_HEADS: &Family = &llama::FAMILY;

/// The family of the layers of DFlash's models.
pub(crate) const OF_DFLASH: &Family = &qwen3::FAMILY;

/// Adds the values of keys that a DFlash model's `config.json` leaves out.
pub(crate) fn of_dflash(mut config: Raw) -> Raw {
    config.fill((OF_DFLASH.class)(), &SIZES);
    config
}

/// Keys that a model's own `config.json` must have.
const SIZES: [&str; 6] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
];

/// The text model that a `config.json` describes.
pub(crate) struct TextModel {
    /// Family of the text model.
    pub family: &'static Family,
    /// Keys of the text model, with the values of keys that the file leaves out.
    pub config: Raw,
    /// Multimodal model around the text model; `None` if there is none.
    pub wrapper: Option<&'static Wrapper>,
}

impl TextModel {
    /// Finds the text model in a `config.json`.
    ///
    /// # Errors
    /// [`ModelConfigError::Unsupported`] for a name that no served family has. For a wrapper
    /// also the errors of reading its `text_config`.
    pub fn of(mut config: Raw) -> Result<Self, ModelConfigError> {
        let named = config
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(|name| name.as_str());
        let (key, name) = match named {
            Some(name) => ("architectures", name),
            None => ("model_type", config.text("model_type")?.unwrap_or_default()),
        };
        let mut all = SERVED.iter();
        if let Some(family) =
            all.find(|family| [family.class_name, family.model_type].contains(&name))
        {
            wrappers::check_keys(&config, family)?;
            config.fill((family.class)(), &SIZES);
            return Ok(Self {
                family,
                config,
                wrapper: None,
            });
        }
        match Wrapper::named(name) {
            Some(wrapper) => wrapper.text_model(config),
            None => Err(config.unsupported(key, format!("served are {}", served()))),
        }
    }
}

impl Family {
    /// Names of the family.
    pub fn architecture(&self) -> Architecture {
        Architecture {
            class_name: self.class_name.to_owned(),
            model_type: self.model_type.to_owned(),
        }
    }
}

/// Class names of the families whose models may have a draft layer of their own, for people.
pub(crate) fn with_draft_layers() -> String {
    let own = SERVED
        .iter()
        .filter(|family| family.traits.draft_layer.is_some());
    listed(&own.map(|family| family.class_name).collect::<Vec<_>>())
}

/// Class names of all models that are served, for people: "A, B and C, and text models of
/// these inside of D and E".
pub fn served() -> String {
    let families: Vec<_> = SERVED.iter().map(|family| family.class_name).collect();
    let families = listed(&families);
    format!(
        "{families}, and text models of these inside of {}",
        wrappers::served()
    )
}

/// Names for people: "A, B and C".
fn listed(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests;
