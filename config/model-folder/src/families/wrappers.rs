//! Multimodal models around a text model of a served family. The text model is served; images,
//! and tensors of other parts, are left alone.

mod keys;

use std::collections::BTreeSet;

use lockstep_types::{ModelConfigError, TensorNames};
use serde_json::Value;

use super::{Family, SERVED, TextModel, listed, qwen_vl};
use crate::{checkpoint, raw::Raw};

/// A multimodal model.
pub(crate) struct Wrapper {
    /// Class name, as in `architectures`.
    pub class_name: &'static str,
    /// Type name, as in `model_type`.
    model_type: &'static str,
    /// Family of the text model where its keys may stand outside, as in older files, and there
    /// is no `text_config`.
    outside: Option<&'static Family>,
}

const fn wrapper(class_name: &'static str, model_type: &'static str) -> Wrapper {
    Wrapper {
        class_name,
        model_type,
        outside: None,
    }
}

/// All wrappers that are served.
const WRAPPERS: [Wrapper; 11] = [
    wrapper("Gemma3ForConditionalGeneration", "gemma3"),
    wrapper("InternVLForConditionalGeneration", "internvl"),
    wrapper("LlavaForConditionalGeneration", "llava"),
    wrapper("LlavaNextForConditionalGeneration", "llava_next"),
    wrapper("LlavaOnevisionForConditionalGeneration", "llava_onevision"),
    wrapper("Mistral3ForConditionalGeneration", "mistral3"),
    Wrapper {
        outside: Some(&qwen_vl::QWEN2),
        ..wrapper("Qwen2VLForConditionalGeneration", "qwen2_vl")
    },
    Wrapper {
        outside: Some(&qwen_vl::QWEN2_5),
        ..wrapper("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl")
    },
    wrapper("Qwen3VLForConditionalGeneration", "qwen3_vl"),
    wrapper("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    wrapper("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
];

/// Families that text models have in wrappers alone.
const INSIDE: [&Family; 3] = [&qwen_vl::QWEN2, &qwen_vl::QWEN2_5, &qwen_vl::QWEN3];

/// Key of the text model's own keys.
const TEXT: &str = "text_config";

impl Wrapper {
    /// Finds the wrapper of a class or a type.
    pub fn named(name: &str) -> Option<&'static Self> {
        let mut all = WRAPPERS.iter();
        all.find(|wrapper| [wrapper.class_name, wrapper.model_type].contains(&name))
    }

    /// Reads the text model of a wrapper's `config.json`. Special tokens and tied
    /// tables may be given on either level.
    ///
    /// # Errors
    /// [`ModelConfigError`]: the checkpoint is quantized, there is no `text_config`, no
    /// served family has its `model_type`, or one of its keys is not known.
    pub fn text_model(&'static self, mut outer: Raw) -> Result<TextModel, ModelConfigError> {
        checkpoint::read(&outer)?;
        let found = |family: &'static Family, config| TextModel {
            family,
            config,
            wrapper: Some(self),
        };
        let Some(mut text) = outer.object(TEXT)? else {
            let family = self
                .outside
                .ok_or_else(|| outer.wrong(TEXT, "is missing"))?;
            check_keys(&outer, family)?;
            outer.fill((family.class)(), &[]);
            return Ok(found(family, outer));
        };
        let name = text.text("model_type")?.unwrap_or_default();
        let all = || SERVED.iter().copied().chain(INSIDE);
        let family = all()
            .find(|family| family.model_type == name)
            .ok_or_else(|| {
                let types: Vec<_> = all().map(|family| family.model_type).collect();
                text.unsupported("model_type", format!("served are {}", listed(&types)))
            })?;
        check_keys(&text, family)?;
        for key in ["eos_token_id", "bos_token_id", "dtype", "torch_dtype", TIED] {
            if let (None, Some(value)) = (text.get(key), outer.get(key)) {
                text.put(key, value.clone());
            }
        }
        if let (None, Some(value)) = (text.get(checkpoint::KEY), outer.get(checkpoint::KEY)) {
            text.put(checkpoint::KEY, value.clone());
        }
        if outer.flag(TIED, false)? {
            text.put(TIED, true.into());
        }
        text.fill((family.class)(), &[]);
        Ok(found(family, text))
    }
}

/// Checks that all keys of a text model which turn something on are known, and that keys of which
/// one value alone is served have that value.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names the first key that is not so.
pub(super) fn check_keys(text: &Raw, family: &Family) -> Result<(), ModelConfigError> {
    let (own, only) = (family.traits.keys, (family.traits.only)());
    let of_one = |key: &str| only.get(key).is_some();
    for (key, served) in only.as_object().into_iter().flatten() {
        let same = |value: &Value| match (value.as_f64(), served.as_f64()) {
            (Some(number), Some(served)) => number == served,
            _ => value == served,
        };
        if text.get(key).is_some_and(|value| !same(value)) {
            return Err(text.unsupported(key, format!("the family is served with {served} alone")));
        }
    }
    let known = |key: &str| keys::is_known(key) || own.contains(&key) || of_one(key);
    match text.keys().find(|key| !known(key)) {
        None => Ok(()),
        Some(key) => {
            let remedy = "it may change results; remove the key if the model card says that it \
                          does not matter";
            Err(text.unsupported(key, remedy))
        }
    }
}

const TIED: &str = "tie_word_embeddings";

/// Class names of all wrappers, for people.
pub(super) fn served() -> String {
    listed(&WRAPPERS.map(|wrapper| wrapper.class_name))
}

/// Prefixes of the text model's tensors but its output head, in wrappers of several ages.
const BODIES: [&str; 3] = ["model.language_model", "language_model.model", "model"];
/// Names of the output head.
const HEADS: [&str; 2] = ["lm_head", "language_model.lm_head"];

/// Returns the names of a wrapper's tensors: `names` of the text model alone, below the prefix
/// that is `stored`.
pub(crate) fn stored_names(names: &TensorNames, stored: &BTreeSet<String>) -> TensorNames {
    let is_stored = |name: &str| stored.contains(&format!("{name}.weight"));
    let bodies = BODIES
        .into_iter()
        .map(|body| names.clone().moved("model", body));
    let mut bodies = bodies.filter(|names| is_stored(&names.embedding));
    let mut found = bodies.next().unwrap_or_else(|| names.clone());
    if let Some(head) = HEADS.into_iter().find(|head| is_stored(head)) {
        found.head = head.to_owned();
    }
    found
}
