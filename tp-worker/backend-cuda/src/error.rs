//! Errors of a GPU and of its libraries.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::nvrtc::result::NvrtcError;
use lockstep_backend::BackendError;
use lockstep_collective::CollectiveError;

use crate::version::Version;

/// Names of memories, for [`CudaError::OutOfMemory`].
pub(crate) const GPU: &str = "the GPU";
pub(crate) const HOST: &str = "the host, as pinned memory,";

/// Error of a failed operation, with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library was not found in the search path.
    #[error("{library} was not found: {remedy}, or run on the CPU")]
    Missing {
        /// File name of the library.
        library: &'static str,
        /// Advice for getting the library.
        remedy: &'static str,
    },
    /// The driver is older than a library or feature needs.
    #[error(
        "the NVIDIA driver is one for CUDA {found}, and {what} needs one for CUDA {needed}: {remedy}, or run on the CPU"
    )]
    OldDriver {
        /// Library or feature that needs a newer driver.
        what: String,
        /// CUDA version of the driver.
        found: Version,
        /// Lowest CUDA version that the driver should have.
        needed: Version,
        /// Advice for the user.
        remedy: String,
    },
    /// The run-time compiler does not know the GPU.
    #[error(
        "libnvrtc {version} compiles nothing for {gpu}: install a newer one (nvidia-cuda-nvrtc) and name its folder first in LD_LIBRARY_PATH, or run on the CPU"
    )]
    OldCompiler {
        /// Version of the compiler.
        version: Version,
        /// Name of the GPU.
        gpu: String,
    },
    /// The driver sees no GPU.
    #[error(
        "the NVIDIA driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU"
    )]
    NoDevice,
    /// There are fewer GPUs than the requested number needs.
    #[error(
        "there is no GPU {ordinal}, as the driver sees {count} of them, counted from 0: look at CUDA_VISIBLE_DEVICES"
    )]
    NoSuchDevice {
        /// The requested GPU, counted from 0.
        ordinal: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// The GPU lacks instructions that kernels use.
    #[error(
        "{name} has compute capability {found}, and {needed} is needed: use a newer GPU, or run on the CPU"
    )]
    OldDevice {
        /// Name of the GPU.
        name: String,
        /// Compute capability of the GPU.
        found: Version,
        /// Lowest capability that is served.
        needed: Version,
    },
    /// The device, or the host's pinned memory, has no room.
    #[error(
        "{what} needs {bytes} bytes, which {place} does not have; lower --mem-fraction-static or --max-total-tokens, or end what else uses it"
    )]
    OutOfMemory {
        /// Purpose of the allocation.
        what: &'static str,
        /// Size of the allocation.
        bytes: usize,
        /// Memory that has no room: the GPU's or the host's pinned memory.
        place: &'static str,
    },
    /// A combination that is not implemented.
    #[error("{0}")]
    Unsupported(String),
    /// A call of the driver failed, or earlier queued work did.
    #[error(
        "{call} failed: {source}; look at nvidia-smi and for the GPU's own errors (Xid) in the system's log, then start again"
    )]
    Driver {
        /// Name of the driver's function.
        call: &'static str,
        /// The driver's error.
        #[source]
        source: DriverError,
    },
    /// A call of the run-time compiler failed.
    #[error(
        "{call} failed: {source}; install the libnvrtc that belongs to the driver, or run on the CPU"
    )]
    Compiler {
        /// Name of the compiler's function.
        call: &'static str,
        /// The compiler's error code.
        #[source]
        source: NvrtcError,
    },
    /// A source does not compile.
    #[error(
        "{name} does not compile for {architecture}: install the whole libnvrtc that belongs to the driver, its libnvrtc-builtins with it, or run on the CPU\n{log}"
    )]
    Compilation {
        /// File name of the source.
        name: &'static str,
        /// The device's architecture: "sm_90".
        architecture: String,
        /// The compiler's log.
        log: String,
    },
    /// A call of NCCL failed, or an operation that it was asked for earlier.
    #[error(
        "{call} failed: {reason}; NCCL_DEBUG=INFO says more, and --collective-backend host goes around it"
    )]
    Nccl {
        /// Name of NCCL's function.
        call: &'static str,
        /// Reason that NCCL gives.
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
        /// Name of cuBLASLt's function.
        call: &'static str,
        /// The library's error code.
        #[source]
        source: CublasError,
    },
}

impl CudaError {
    /// Returns true if another program uses the GPU exclusively or has all of its memory.
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
            // No option makes more pinned memory.
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

/// For `map_err`: the error of a failed call of the driver.
pub(crate) fn driver(call: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |source| CudaError::Driver { call, source }
}
