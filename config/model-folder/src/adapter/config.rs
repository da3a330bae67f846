//! `adapter_config.json`: factors and ranks of an adapter, and all that is not served.

use std::path::{Path, PathBuf};

use lockstep_files::shown;
use lockstep_types::{AdapterError, ModelConfigError};
use serde_json::Value;

use super::patterns::{Patterns, ends_at_dot};
use crate::raw::Raw;

const CONFIG: &str = "adapter_config.json";

/// Keys that may be on. Some of them are checked. Others say how the adapter was trained, and nothing
/// about its result.
const KNOWN: [&str; 27] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
    // What trainers note beside PEFT's keys.
    "unsloth_fixed",
    "unsloth_version",
    "transformers_version",
    "torch_dtype",
];

/// First values of matrices that leave the model as it is. With others, such as PiSSA's, a part of
/// the model's own weights was moved into the adapter, and what is left of them is another model.
const INITIAL: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Remedy for what is not served.
const MERGE: &str =
    "merge the adapter into the model with PEFT's `merge_and_unload`, and serve that";

/// Factors and ranks of an adapter, and the projections that it should add to.
pub(super) struct AdapterConfig {
    path: PathBuf,
    rank: usize,
    alpha: f64,
    /// True if factors are divided by the root of the rank (rank-stabilised, Kalajdzievski,
    /// arXiv:2312.03732).
    rslora: bool,
    ranks: Patterns,
    alphas: Patterns,
    /// Endings of the modules' names; `None` if the configuration has another form of them.
    targets: Option<Vec<String>>,
    excluded: Vec<String>,
    /// Numbers of the layers that it adds to; empty if it adds to all.
    layers: Vec<u64>,
}

impl AdapterConfig {
    /// Reads the configuration in `folder`.
    ///
    /// # Errors
    /// [`AdapterError`].
    pub fn read(folder: &Path) -> Result<Self, AdapterError> {
        let path = folder.join(CONFIG);
        let raw = Raw::read(folder, CONFIG).map_err(converted)?;
        let key = |key: &str, message: String| AdapterError::Key {
            path: path.clone(),
            key: key.to_owned(),
            message,
        };
        check_known(&raw, &key)?;
        check_values(&raw, &key)?;
        let number = |key, default| {
            let found = raw.number(key).map_err(converted)?;
            Ok::<_, AdapterError>(found.unwrap_or(default))
        };
        let patterns = |name: &str| {
            let found = raw.get(name).map_or(Ok(Patterns::default()), Patterns::of);
            found.map_err(|why| key(name, why))
        };
        Ok(Self {
            rank: raw.size("r").map_err(converted)?.unwrap_or(8),
            alpha: number("lora_alpha", 8.0)?,
            rslora: raw.flag("use_rslora", false).map_err(converted)?,
            ranks: patterns("rank_pattern")?,
            alphas: patterns("alpha_pattern")?,
            targets: listed(raw.get("target_modules")),
            excluded: listed(raw.get("exclude_modules")).unwrap_or_default(),
            layers: numbers(raw.get("layers_to_transform")),
            path,
        })
    }

    /// Checks that the adapter should add to `module`.
    ///
    /// # Errors
    /// [`AdapterError::Key`]: PEFT would not have read the module's tensors.
    pub fn check_target(&self, module: &str) -> Result<(), AdapterError> {
        let among = |endings: &[String]| endings.iter().any(|end| ends_at_dot(module, end));
        let number = module.split('.').find_map(|part| part.parse::<u64>().ok());
        let layer = self.layers.is_empty() || number.is_some_and(|own| self.layers.contains(&own));
        let targets = self.targets.as_deref();
        let (key, fits) = match targets.is_none_or(among) {
            true if among(&self.excluded) => ("exclude_modules", false),
            true => ("layers_to_transform", layer),
            false => ("target_modules", false),
        };
        match fits {
            true => Ok(()),
            false => {
                let module = shown(module);
                let message = format!("leaves out {module}, for which there are tensors");
                Err(self.wrong(key, message))
            }
        }
    }

    /// Returns the factor of the matrices of `module`, which have the rank `found`.
    ///
    /// # Errors
    /// [`AdapterError::Key`] if the configuration has another rank for it.
    pub fn scale(&self, module: &str, found: usize) -> Result<f32, AdapterError> {
        let rank = self.ranks.find(module).unwrap_or(self.rank as f64);
        if rank != found as f64 {
            let module = shown(module);
            let message = format!("is {rank} for {module}, whose matrices have rank {found}");
            return Err(self.wrong("r", message));
        }
        let alpha = self.alphas.find(module).unwrap_or(self.alpha);
        let over = if self.rslora { rank.sqrt() } else { rank };
        Ok((alpha / over) as f32)
    }

    fn wrong(&self, key: &str, message: String) -> AdapterError {
        AdapterError::Key {
            path: self.path.clone(),
            key: key.to_owned(),
            message,
        }
    }
}

/// Refuses keys that are on and that may change what the adapter computes.
fn check_known(
    raw: &Raw,
    wrong: &impl Fn(&str, String) -> AdapterError,
) -> Result<(), AdapterError> {
    match raw.keys().find(|key| !KNOWN.contains(key)) {
        None => Ok(()),
        Some(key) => {
            let value = raw.get(key).map(Value::to_string).unwrap_or_default();
            let value = shown(&value);
            Err(wrong(
                &shown(key),
                format!("is {value}, which is not served: {MERGE}"),
            ))
        }
    }
}

/// Refuses values of known keys that are not served.
fn check_values(
    raw: &Raw,
    wrong: &impl Fn(&str, String) -> AdapterError,
) -> Result<(), AdapterError> {
    let serves = |key: &str, served: &dyn Fn(&Value) -> bool| match raw.get(key) {
        Some(value) if !served(value) => {
            let value = shown(&value.to_string());
            Err(wrong(
                key,
                format!("is {value}, which is not served: {MERGE}"),
            ))
        }
        _ => Ok(()),
    };
    if raw.get("peft_type").is_none() {
        return Err(wrong(
            "peft_type",
            "is missing: this is no adapter's folder".to_owned(),
        ));
    }
    serves("peft_type", &|value| value == "LORA")?;
    serves("bias", &|value| value == "none")?;
    let first = |value: &Value| match value {
        Value::Bool(_) => true,
        Value::String(name) => INITIAL.contains(&name.as_str()),
        _ => false,
    };
    serves("init_lora_weights", &first)
}

/// Returns a list of texts; `None` for any other value.
fn listed(value: Option<&Value>) -> Option<Vec<String>> {
    let texts = value?.as_array()?.iter().map(Value::as_str);
    texts.map(|text| text.map(str::to_owned)).collect()
}

/// Returns one number or a list of them; none for any other value.
fn numbers(value: Option<&Value>) -> Vec<u64> {
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).collect(),
        Some(one) => one.as_u64().into_iter().collect(),
        None => Vec::new(),
    }
}

/// Returns the error for a file that describes an adapter, not a model.
fn converted(error: ModelConfigError) -> AdapterError {
    match error {
        ModelConfigError::Read { path, message } => AdapterError::Read { path, message },
        // A GGUF file is no folder of an adapter.
        ModelConfigError::Gguf { message } => AdapterError::Read {
            path: PathBuf::from(CONFIG),
            message,
        },
        ModelConfigError::Malformed { path, message } => AdapterError::Read {
            path,
            message: format!("it is damaged: {message}"),
        },
        ModelConfigError::Key { path, key, message } => AdapterError::Key { path, key, message },
        ModelConfigError::Unsupported {
            path,
            key,
            value,
            remedy,
        } => AdapterError::Key {
            path,
            key,
            message: format!("is {value}, which is not supported: {remedy}"),
        },
    }
}
