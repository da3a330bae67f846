//! The CPU backend of a rank, as the configuration wants it.

use lockstep_backend_cpu::{Compute, CpuBackend, CpuOptions, WeightFormat};
use lockstep_collective::Collective;
use lockstep_types::{Dtype, EngineConfig, Quantization};

use super::WorkerError;

/// Builds a rank's backend on `cores` (`None` or empty = not pinned).
///
/// # Errors
/// [`WorkerError::Cpu`].
pub fn cpu_backend(
    config: &EngineConfig,
    cores: Option<&[usize]>,
    collective: Box<dyn Collective>,
) -> Result<CpuBackend, WorkerError> {
    let weights = match config.quantization {
        Quantization::None => WeightFormat::Native,
        Quantization::Int8 => WeightFormat::Int8,
        Quantization::Int4 => WeightFormat::Int4,
    };
    let options = CpuOptions {
        threads: config.parallel.threads_per_rank,
        dtype: match config.dtype {
            Dtype::Bfloat16 => Compute::Bf16,
            Dtype::Float32 => Compute::F32,
        },
        weights,
        pin: cores
            .filter(|cores| !cores.is_empty())
            .map(<[usize]>::to_vec),
        isa: None,
    };
    Ok(CpuBackend::new(options, collective)?)
}
