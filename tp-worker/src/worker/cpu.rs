//! The CPU backend of a rank, as the configuration wants it.

use lockstep_backend::BackendError;
use lockstep_backend_cpu::{Compute, CpuBackend, CpuOptions};
use lockstep_collective::Collective;
use lockstep_config::{Dtype, EngineConfig, Quantization};

use super::WorkerError;

/// Builds a rank's backend on `cores` (`None` or empty = not pinned).
///
/// # Errors
/// [`WorkerError::Cpu`]; [`WorkerError::Backend`] for weights of a type that
/// the backend does not have.
pub fn cpu_backend(
    config: &EngineConfig,
    cores: Option<&[usize]>,
    collective: Box<dyn Collective>,
) -> Result<CpuBackend, WorkerError> {
    if config.quantization != Quantization::None {
        return Err(WorkerError::Backend(BackendError::Unsupported(format!(
            "the CPU backend has no {} weights; give --quantization none",
            config.quantization.name()
        ))));
    }
    let options = CpuOptions {
        threads: config.parallel.threads_per_rank,
        dtype: match config.dtype {
            Dtype::Bfloat16 => Compute::Bf16,
            Dtype::Float32 => Compute::F32,
        },
        pin: cores
            .filter(|cores| !cores.is_empty())
            .map(<[usize]>::to_vec),
        isa: None,
    };
    Ok(CpuBackend::new(options, collective)?)
}
