//! Types of weights and of their inputs, for people.

use lockstep_types::{CheckpointFormat, DeviceKind, EngineConfig, Quantization};

/// Name of the type of the weights, and where that is another one, of the type that they become on
/// a GPU, or of the type of their inputs.
pub(crate) fn weights(engine: &EngineConfig) -> String {
    let inputs = engine.dtype.name();
    let checkpoint = &engine.model.checkpoint;
    let name = match (engine.model.quantization, checkpoint) {
        (Quantization::None, CheckpointFormat::Floats) => return inputs.to_owned(),
        (Quantization::None, CheckpointFormat::Mxfp4(_)) => {
            return format!("MXFP4 experts with {inputs} inputs");
        }
        (Quantization::None, CheckpointFormat::Gguf(_)) => match checkpoint.describe() {
            Some(types) => types,
            None => return inputs.to_owned(),
        },
        (Quantization::None, CheckpointFormat::Fp8(_)) => "FP8".to_owned(),
        (Quantization::None, CheckpointFormat::Integers(integers)) => integers.name(),
        (quantization, _) => return quantization.name().to_owned(),
    };
    match (engine.device.kind, checkpoint) {
        (DeviceKind::Cuda, _) => format!("{name}, widened to {inputs}"),
        (DeviceKind::Cpu, CheckpointFormat::Fp8(_)) => format!("{name} with {inputs} inputs"),
        (DeviceKind::Cpu, _) => name,
    }
}
