//! Factors of the residual stream behind layers, which lie among a model's tensors.

use std::fs::File;

use half::{bf16, f16};
use lockstep_files::weights::{Dtype, TensorPlace, WeightFile, weight_files};
use lockstep_files::{on_reader_thread, read_exact_at};
use lockstep_types::{ModelConfig, ModelConfigError};

/// Reads the factors of the layers of `model`, if its family has some.
///
/// # Errors
/// [`ModelConfigError::Malformed`]: a factor is missing, can't be read, or is no number above
/// zero. Damaged files are reported by the code that loads the weights.
pub(crate) fn read(model: &mut ModelConfig) -> Result<(), ModelConfigError> {
    let Some(name) = &model.names.layer_scale else {
        return Ok(());
    };
    let Some(files) = weight_files(&model.path).ok().flatten() else {
        return Ok(());
    };
    for number in 0..model.layers.len() {
        let name = format!("{}.{name}", model.names.layer(number));
        let wrong = |reason: &str| ModelConfigError::Malformed {
            path: model.path.clone(),
            message: format!("the tensor {name}, a factor of its layer, {reason}"),
        };
        let mut found = files.iter().filter_map(|WeightFile { file, tensors, .. }| {
            let place = tensors.get(&name)?;
            Some((file, place))
        });
        let (file, place) = found.next().ok_or_else(|| wrong("is missing"))?;
        let value =
            number_at(file, place).ok_or_else(|| wrong("is not one number of 16 or 32 bits"))?;
        if !(value.is_finite() && value > 0.0) {
            return Err(wrong(&format!("is {value}, not above zero")));
        }
        model.layers[number].scale = value;
    }
    Ok(())
}

/// Reads a tensor of one number; `None` if it is another one or can't be read.
fn number_at(file: &File, place: &TensorPlace) -> Option<f32> {
    let bytes = match place.dtype {
        Dtype::F32 => 4,
        Dtype::BF16 | Dtype::F16 => 2,
        _ => return None,
    };
    if place.shape.iter().product::<usize>() != 1 {
        return None;
    }
    let (file, from) = (file.try_clone().ok()?, place.bytes.start);
    let read = on_reader_thread(move || {
        let mut found = [0; 4];
        read_exact_at(&file, &mut found[..bytes], from)?;
        Ok(found)
    });
    let [a, b, c, d] = read.ok()?;
    Some(match place.dtype {
        Dtype::BF16 => bf16::from_le_bytes([a, b]).to_f32(),
        Dtype::F16 => f16::from_le_bytes([a, b]).to_f32(),
        _ => f32::from_le_bytes([a, b, c, d]),
    })
}

#[cfg(test)]
mod tests;
