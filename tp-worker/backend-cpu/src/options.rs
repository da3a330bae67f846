//! Settings of a backend, and their errors.

use lockstep_types::Dtype;

use crate::isa::Isa;

/// Settings of a [`crate::CpuBackend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, counting the one that calls the backend; at least 1.
    pub threads: usize,
    /// The type that matrix products compute in: bf16 weights and inputs with sums in f32,
    /// or f32 throughout.
    pub dtype: Dtype,
    /// Cores, one per thread; the thread that builds the backend is pinned to the first.
    pub pin: Option<Vec<usize>>,
    /// Kernels to use instead of the fastest that this machine runs.
    pub isa: Option<Isa>,
}

/// The reason why a backend cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The options name no threads.
    #[error("the CPU backend needs at least one thread")]
    NoThreads,
    /// The numbers of cores and of threads differ.
    #[error("{cores} cores are named for {threads} threads; name one per thread")]
    Pinning {
        /// Cores named.
        cores: usize,
        /// Threads asked for.
        threads: usize,
    },
    /// This machine does not run the kernels that the options name.
    #[error(
        "this machine does not run {0} kernels: {reason}; without a name the best that it runs are taken",
        reason = .0.lacks().unwrap_or_default()
    )]
    Isa(Isa),
    /// Threads could not be started or pinned.
    #[error("cannot start or pin kernel threads: {0}")]
    Threads(#[from] std::io::Error),
}

impl CpuOptions {
    pub(crate) fn validate(&self) -> Result<Isa, CpuError> {
        if self.threads == 0 {
            return Err(CpuError::NoThreads);
        }
        if let Some(cores) = self
            .pin
            .as_ref()
            .map(Vec::len)
            .filter(|&cores| cores != self.threads)
        {
            return Err(CpuError::Pinning {
                cores,
                threads: self.threads,
            });
        }
        let isa = self.isa.unwrap_or_else(Isa::detect);
        if isa.is_available() {
            Ok(isa)
        } else {
            Err(CpuError::Isa(isa))
        }
    }
}
