//! The tensors of a checkpoint, and what they say about its form. Lists of exceptions in
//! `config.json` are written in many ways; the tensors are not.

mod integers;

use lockstep_files::weights::{Dtype, WeightFile, weight_files};
use lockstep_types::{CheckpointFormat, ModelConfig};

use super::gguf;

/// Endings of scales that are stored beside 8-bit floats and are no part of the weights: their
/// use, and how that is done instead.
const UNUSED: [(&str, &[&str], &str); 2] = [
    (
        "inputs",
        &[".input_scale", ".input_zero_point", ".activation_scale"],
        "inputs are not rounded to 8 bits",
    ),
    (
        "keys and values",
        &[
            ".k_scale",
            ".v_scale",
            ".kv_scale",
            ".q_scale",
            ".output_scale",
        ],
        "--kv-cache-dtype alone says how these are kept",
    ),
];

/// Finds the matrices that are floats in a checkpoint of another form, and the forms of integers.
/// Returns notes for the
/// operator about tensors that are not used. Missing or damaged weights are reported by the code
/// that loads them.
pub(crate) fn read_stored(model: &mut ModelConfig) -> Vec<String> {
    let files = || weight_files(&model.path).ok().flatten().unwrap_or_default();
    // Dimensions of matrices, and the type that is no float.
    let (files, floats, dimensions, rounded) = match &mut model.checkpoint {
        CheckpointFormat::Floats => return Vec::new(),
        CheckpointFormat::Integers(_) => {
            let files = files();
            let notes = integers::read(model, &files);
            return notes.into_iter().chain(unused(&files)).collect();
        }
        CheckpointFormat::Gguf(gguf) => {
            gguf::read(gguf, &model.path);
            return Vec::new();
        }
        CheckpointFormat::Fp8(fp8) => (files(), &mut fp8.floats, 2, Dtype::F8_E4M3),
        CheckpointFormat::Mxfp4(mxfp4) => (files(), &mut mxfp4.floats, 3, Dtype::U8),
    };
    for (name, place) in files.iter().flat_map(|file| &file.tensors) {
        if place.shape.len() == dimensions && place.dtype != rounded {
            let below = match dimensions {
                2 => model.names.module(name),
                _ => model.names.below(name),
            };
            floats.extend(below.map(str::to_owned));
        }
    }
    floats.sort_unstable();
    floats.dedup();
    match rounded {
        Dtype::F8_E4M3 => unused(&files),
        _ => Vec::new(),
    }
}

/// Names the scales that are accepted and not used.
fn unused(files: &[WeightFile]) -> Vec<String> {
    let names = || files.iter().flat_map(|file| file.tensors.keys());
    let of_use = |(what, endings, instead): &(&str, &[&str], &str)| {
        let found = |name: &&String| endings.iter().any(|ending| name.ends_with(ending));
        let first = names().find(found)?;
        let count = names().filter(found).count();
        Some(format!(
            "the checkpoint has scales of {what} ({count} tensors, the first is {}), which are \
             not used: {instead}",
            lockstep_files::shown(first)
        ))
    };
    UNUSED.iter().filter_map(of_use).collect()
}
