//! How a backend is set up.

use crate::isa::Isa;

/// What matrix products compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// Weights and inputs rounded to bf16, sums in f32.
    Bf16,
    /// f32 throughout.
    F32,
}

/// What weights are kept in. Quantised weights are multiplied with inputs
/// rounded to 8-bit integers per token and 128 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// What products compute in.
    Native,
    /// 8-bit integers with one bf16 scale per output and 128 inputs: 8.125 bits
    /// a weight.
    Int8,
    /// 4-bit integers with a scale per output and 32 inputs, itself a multiple
    /// by a 5-bit integer of one per 128 inputs: 4.25 bits a weight. Tables of
    /// the vocabulary bear less rounding and are [`Self::Int8`].
    Int4,
}

/// Settings of a [`crate::CpuBackend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, counting the one that calls the backend; at least 1.
    pub threads: usize,
    /// Arithmetic of matrix products.
    pub dtype: Compute,
    /// What weight matrices are rounded to when they are loaded.
    pub weights: WeightFormat,
    /// Cores, one per thread; the thread that builds the backend is pinned to the first.
    pub pin: Option<Vec<usize>>,
    /// Kernels to use instead of the fastest this machine runs.
    pub isa: Option<Isa>,
}

/// Why a backend cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// No threads.
    #[error("the CPU backend needs at least one thread")]
    NoThreads,
    /// Not one core per thread.
    #[error("{cores} cores are named for {threads} threads; name one per thread")]
    Pinning {
        /// Cores named.
        cores: usize,
        /// Threads asked for.
        threads: usize,
    },
    /// Kernels this machine cannot run.
    #[error("this machine does not run {0} kernels; leave the choice to the backend")]
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
