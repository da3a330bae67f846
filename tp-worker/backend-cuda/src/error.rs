//! What can go wrong with a GPU.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::nvrtc::result::NvrtcError;
use lockstep_backend::BackendError;
use lockstep_collective::CollectiveError;

use crate::version::Version;

/// Places that may have no room.
pub(crate) const GPU: &str = "the GPU";
pub(crate) const HOST: &str = "the host, as pinned memory,";

/// A failed operation, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library is not where libraries are looked for.
    #[error("{library} was not found: {remedy}, or run on the CPU")]
    Missing {
        /// Its name.
        library: &'static str,
        /// How to get it.
        remedy: &'static str,
    },
    /// The driver is older than what is asked of it.
    #[error(
        "the NVIDIA driver is one for CUDA {found}, and {what} needs one for CUDA {needed}: {remedy}, or run on the CPU"
    )]
    OldDriver {
        /// Who asks.
        what: String,
        /// What the driver is for.
        found: Version,
        /// What it should be for, at least.
        needed: Version,
        /// What to do.
        remedy: String,
    },
    /// The run-time compiler does not know the GPU.
    #[error(
        "libnvrtc {version} compiles nothing for {gpu}: install a newer one (nvidia-cuda-nvrtc) and name its folder first in LD_LIBRARY_PATH, or run on the CPU"
    )]
    OldCompiler {
        /// The compiler's.
        version: Version,
        /// The GPU.
        gpu: String,
    },
    /// The driver sees no GPU.
    #[error(
        "the NVIDIA driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU"
    )]
    NoDevice,
    /// There are fewer GPUs.
    #[error(
        "there is no GPU {ordinal}, as the driver sees {count} of them, counted from 0: look at CUDA_VISIBLE_DEVICES"
    )]
    NoSuchDevice {
        /// The one asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU lacks instructions that kernels use.
    #[error(
        "{name} has compute capability {found}, and {needed} is needed: use a newer GPU, or run on the CPU"
    )]
    OldDevice {
        /// The GPU.
        name: String,
        /// Its capability.
        found: Version,
        /// The least that serves.
        needed: Version,
    },
    /// The device, or the host's pinned memory, has no room.
    #[error(
        "{what} needs {bytes} bytes, which {place} does not have; lower --mem-fraction-static or --max-total-tokens, or end what else uses it"
    )]
    OutOfMemory {
        /// What was being allocated.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// Where.
        place: &'static str,
    },
    /// A combination that is not implemented.
    #[error("{0}")]
    Unsupported(String),
    /// A call of the driver failed, or work that was queued before it.
    #[error(
        "{call} failed: {source}; look at nvidia-smi and for the GPU's own errors (Xid) in the system's log, then start again"
    )]
    Driver {
        /// The function.
        call: &'static str,
        /// What the driver says.
        #[source]
        source: DriverError,
    },
    /// A call of the run-time compiler failed.
    #[error(
        "{call} failed: {source}; install the libnvrtc that belongs to the driver, or run on the CPU"
    )]
    Compiler {
        /// The function.
        call: &'static str,
        /// What the library says.
        #[source]
        source: NvrtcError,
    },
    /// A source does not compile.
    #[error(
        "{name} does not compile for {architecture}: install the whole libnvrtc that belongs to the driver, its libnvrtc-builtins with it, or run on the CPU\n{log}"
    )]
    Compilation {
        /// The source.
        name: &'static str,
        /// The device's architecture: "sm_90".
        architecture: String,
        /// What the compiler says.
        log: String,
    },
    /// A call of NCCL failed, or what was asked of it before.
    #[error(
        "{call} failed: {reason}; NCCL_DEBUG=INFO says more, and --collective-backend host goes around it"
    )]
    Nccl {
        /// The function.
        call: &'static str,
        /// What the library says.
        reason: String,
    },
    /// A peer is gone or out of step.
    #[error(transparent)]
    Peers(Box<CollectiveError>),
    /// A call of cuBLASLt failed.
    #[error(
        "{call} failed: {source}; install the libcublasLt that belongs to the driver, or run on the CPU"
    )]
    Product {
        /// The function.
        call: &'static str,
        /// What the library says.
        #[source]
        source: CublasError,
    },
}

impl CudaError {
    /// Whether another program has the GPU, or all of its memory.
    pub fn is_taken(&self) -> bool {
        use cudarc::driver::sys::CUresult;
        let Self::Driver { source, .. } = self else {
            return false;
        };
        matches!(
            source.0,
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE | CUresult::CUDA_ERROR_OUT_OF_MEMORY
        )
    }
}

impl From<CudaError> for BackendError {
    fn from(error: CudaError) -> Self {
        match error {
            // Of pinned memory there is no more for any option.
            CudaError::OutOfMemory { what, bytes, place } if place == GPU => {
                Self::OutOfMemory { what, bytes }
            }
            CudaError::Unsupported(why) => Self::Unsupported(why),
            CudaError::Peers(error) => Self::Collective(error),
            other => Self::Device(Box::new(other)),
        }
    }
}

impl From<CollectiveError> for CudaError {
    fn from(error: CollectiveError) -> Self {
        Self::Peers(Box::new(error))
    }
}

/// For `map_err`: a call of the driver that failed.
pub(crate) fn driver(call: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |source| CudaError::Driver { call, source }
}
