//! Folder of an adapter (LoRA), as PEFT writes it: `adapter_config.json`, and the matrices in
//! `adapter_model.safetensors`.
//!
//! The tensors say what the adapter adds to, and the configuration by which factor. Whatever would
//! change the result in another way is refused by its name.

mod config;
mod patterns;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use lockstep_files::{
    shown,
    weights::{Dtype, TensorPlace, WeightFile, WeightsError, weight_file},
};
use lockstep_types::AdapterError;

use config::AdapterConfig;

const WEIGHTS: &str = "adapter_model.safetensors";
/// Prefix of names in the files, which PEFT's classes give to modules of the model.
const PREFIX: &str = "base_model.model.";

/// An adapter as its folder describes it. Its matrices are not read yet.
#[derive(Debug)]
pub struct DescribedAdapter {
    /// Path of the file of tensors, for messages.
    pub path: PathBuf,
    /// The file of tensors.
    pub file: WeightFile,
    /// The projections that it adds to, by their names in the model, without `.weight`.
    pub modules: BTreeMap<String, AdaptedModule>,
}

/// Matrices that an adapter adds to one projection: `scale · up · down`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdaptedModule {
    /// Rows of `down`, and columns of `up`.
    pub rank: usize,
    /// Factor of the product.
    pub scale: f32,
    /// Name of the tensor `[rank, in]`, PEFT's `lora_A`.
    pub down: String,
    /// Name of the tensor `[out, rank]`, PEFT's `lora_B`.
    pub up: String,
}

/// A matrix of a projection's pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Down,
    Up,
}

/// Reads what an adapter's folder says.
///
/// # Errors
/// [`AdapterError`] names the file, and the key or tensor that is missing, damaged or not served.
pub fn load(folder: &Path) -> Result<DescribedAdapter, AdapterError> {
    let config = AdapterConfig::read(folder)?;
    let path = folder.join(WEIGHTS);
    let file = weight_file(folder, WEIGHTS).map_err(|error| unread(folder, &error))?;
    let file = file.ok_or_else(|| AdapterError::Read {
        path: path.clone(),
        message: match lockstep_files::open(folder, "adapter_model.bin") {
            Ok(_) => {
                "there is none, and adapter_model.bin is not read, as loading it may run code; \
                      save the adapter with `safe_serialization=True`"
                    .to_owned()
            }
            Err(_) => "there is no such file".to_owned(),
        },
    })?;
    let mut pairs: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
    for (name, place) in &file.tensors {
        let wrong = |message: String| wrong(&path, name, message);
        let (module, side) = parsed(name).map_err(|why| wrong(why.to_owned()))?;
        if ![Dtype::F32, Dtype::BF16, Dtype::F16].contains(&place.dtype) {
            let found = place.dtype;
            return Err(wrong(format!("is {found:?}; expected BF16, F16 or F32")));
        }
        let pair = pairs.entry(module.to_owned()).or_default();
        if let Some(other) = pair[side as usize].replace(name.clone()) {
            return Err(wrong(format!("is the same matrix as {}", shown(&other))));
        }
    }
    let mut modules = BTreeMap::new();
    for (module, pair) in pairs {
        let [Some(down), Some(up)] = pair else {
            let found = pair.into_iter().flatten().next().unwrap_or_default();
            let alone = "has no partner: each projection has a lora_A and a lora_B";
            return Err(wrong(&path, &found, alone));
        };
        config.check_target(&module)?;
        let rank = rank_of(&path, &file, [&down, &up])?;
        let scale = config.scale(&module, rank)?;
        let adapted = AdaptedModule {
            rank,
            scale,
            down,
            up,
        };
        modules.insert(module, adapted);
    }
    if modules.is_empty() {
        let message = "it has no tensors".to_owned();
        return Err(AdapterError::Read { path, message });
    }
    Ok(DescribedAdapter {
        path,
        file,
        modules,
    })
}

impl DescribedAdapter {
    /// Returns the place of a tensor that a module names.
    pub fn place(&self, tensor: &str) -> Option<&TensorPlace> {
        self.file.tensors.get(tensor)
    }
}

/// Returns the module that a tensor belongs to, and which of its matrices it is.
///
/// # Errors
/// The reason why it is none of these.
fn parsed(name: &str) -> Result<(&str, Side), &'static str> {
    let below = name.strip_prefix(PREFIX).unwrap_or(name);
    for (mark, side) in [(".lora_A", Side::Down), (".lora_B", Side::Up)] {
        match below.rsplit_once(mark) {
            Some((module, ".weight" | ".default.weight")) if !module.is_empty() => {
                return Ok((module, side));
            }
            _ => {}
        }
    }
    Err(if below.contains("lora_magnitude_vector") {
        "belongs to DoRA, which is not served: merge the adapter into the model with PEFT's \
         `merge_and_unload`"
    } else if below.contains("lora_embedding_") {
        "adds to an embedding, which is not served: train adapters of projections alone"
    } else if below.contains(".lora_") && below.ends_with(".bias") {
        "is a bias of an adapter, which is not served: train with `lora_bias` false"
    } else {
        "is no lora_A or lora_B of a projection: whole tensors beside adapters \
         (`modules_to_save`) are not served; merge the adapter into the model with PEFT's \
         `merge_and_unload`"
    })
}

/// Returns the rank that the shapes of a pair have.
fn rank_of(path: &Path, file: &WeightFile, names: [&String; 2]) -> Result<usize, AdapterError> {
    let shape = |name: &String| {
        file.tensors
            .get(name)
            .map_or(&[][..], |place| place.shape.as_slice())
    };
    match names.map(shape) {
        [[rank, _], [_, columns]] if rank == columns && *rank > 0 => Ok(*rank),
        [down, up] => {
            let message = format!("has shape {down:?}, and its lora_B {up:?}: they have no rank");
            Err(wrong(path, names[0], message))
        }
    }
}

/// The error for a tensor.
fn wrong(path: &Path, tensor: &str, message: impl Into<String>) -> AdapterError {
    AdapterError::Tensor {
        path: path.to_owned(),
        tensor: shown(tensor),
        message: message.into(),
    }
}

/// The error for a file of tensors that can't be read.
fn unread(folder: &Path, error: &WeightsError) -> AdapterError {
    let (name, message) = match error {
        WeightsError::Read { name, source } => (name, source.to_string()),
        WeightsError::Damaged { name, reason } => (name, format!("it is damaged: {reason}")),
        WeightsError::Unserved { name, reason } => (name, reason.clone()),
    };
    AdapterError::Read {
        path: folder.join(name),
        message: shown(&message),
    }
}

#[cfg(test)]
mod tests;
