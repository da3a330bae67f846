//! Families of models, one file each: the layers that their `config.json` describes.

mod dense;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod rope;

use lockstep_types::{Architecture, LayerSpec, ModelConfigError};

use crate::raw::Raw;
pub(crate) use dense::rms_norm_eps;

/// A family of models, with the functions that read its `config.json`.
pub(crate) struct Family {
    /// Class name of the family, as in `architectures`.
    pub class_name: &'static str,
    /// Type name of the family, as in `model_type`.
    pub model_type: &'static str,
    /// Reads the layers, from the first to the last.
    pub layers: fn(&Raw) -> Result<Vec<LayerSpec>, ModelConfigError>,
    /// Reads the smallest window that a layer attends within, in tokens; `None` if all layers
    /// attend over the whole text.
    pub window: fn(&Raw) -> Result<Option<usize>, ModelConfigError>,
}

/// All families that are served. All are dense decoder-only transformers.
const SERVED: [&Family; 4] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
];

/// The family of the layers of EAGLE's heads, whatever their `config.json` names.
pub(crate) const OF_HEADS: &Family = &llama::FAMILY;

impl Family {
    /// Finds the family that `config.json` names.
    ///
    /// # Errors
    /// [`ModelConfigError::Unsupported`] for a name that no served family has.
    pub fn of(config: &Raw) -> Result<&'static Self, ModelConfigError> {
        let named = config
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(|name| name.as_str());
        let (key, name) = match named {
            Some(name) => ("architectures", name),
            None => ("model_type", config.text("model_type")?.unwrap_or_default()),
        };
        let mut all = SERVED.into_iter();
        let known = all.find(|known| name == known.class_name || name == known.model_type);
        known.ok_or_else(|| config.unsupported(key, format!("served are {}", served())))
    }

    /// Names of the family.
    pub fn architecture(&self) -> Architecture {
        Architecture {
            class_name: self.class_name.to_owned(),
            model_type: self.model_type.to_owned(),
        }
    }
}

/// Class names of all families that are served, for people: "A, B and C".
pub fn served() -> String {
    let names = SERVED.map(|family| family.class_name);
    match names.split_last() {
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_families_are_named_for_people() {
        let all = served();
        for family in SERVED {
            assert!(all.contains(family.class_name), "{all}");
        }
        assert!(all.starts_with("LlamaForCausalLM, "), "{all}");
        assert!(all.ends_with(" and Qwen3ForCausalLM"), "{all}");
    }
}
