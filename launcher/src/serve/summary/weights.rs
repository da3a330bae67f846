//! Types of weights and of their inputs, for people.

use lockstep_types::{CheckpointFormat, EngineConfig, Quantization};

/// Name of the type of the weights, and where that is another one, of the type of their inputs.
pub(crate) fn weights(engine: &EngineConfig) -> String {
    let inputs = engine.dtype.name();
    match (engine.model.quantization, &engine.model.checkpoint) {
        (Quantization::None, CheckpointFormat::Floats) => inputs.to_owned(),
        (Quantization::None, form @ CheckpointFormat::Gguf(_)) => {
            form.describe().unwrap_or_else(|| inputs.to_owned())
        }
        (Quantization::None, CheckpointFormat::Fp8(_)) => format!("FP8 with {inputs} inputs"),
        (Quantization::None, CheckpointFormat::Mxfp4(_)) => {
            format!("MXFP4 experts with {inputs} inputs")
        }
        (quantization, _) => quantization.name().to_owned(),
    }
}
