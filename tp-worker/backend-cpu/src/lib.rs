//! CPU kernels: packed GEMM, paged attention, norms, thread pool.
//!
//! [`CpuBackend`] implements [`lockstep_backend::Backend`] on a set of CPU
//! cores. Kernels exist for AMX, AVX-512 with and without bf16, AVX2, NEON and
//! plain Rust; one is chosen when the backend is built. Weights may be rounded to
//! 8 or 4 bits. Every output element is accumulated in one order, so results do
//! not depend on the batch, the chunking, the page size or the number of threads.
//! [`roofline`] measures the limits of the same threads.

mod activation;
mod adapters;
mod amx;
mod attention;
mod backend;
mod collectives;
mod exp;
mod experts;
mod footprint;
mod formats;
mod gemm;
mod inputs;
mod isa;
mod latent;
mod memory;
mod multiversion;
mod norm;
mod number;
mod options;
mod partition;
mod pool;
mod prefetch;
mod quantize;
mod recurrent;
pub mod roofline;
mod rope;
mod rows;
mod tensor;

pub use attention::{AttentionTasks, CpuKvCache};
pub use backend::CpuBackend;
pub use footprint::{CpuAllocated, CpuMemory};
pub use formats::CpuMatrix;
pub use inputs::CpuInputs;
pub use isa::{Isa, UnknownIsa};
pub use options::{CpuError, CpuOptions};
pub use recurrent::CpuStates;
pub use rope::CpuRope;
pub use tensor::{CpuTensor, CpuVector};
