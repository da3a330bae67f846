//! A transformer's operations on one NVIDIA GPU, and the layers below them.
//!
//! CUDA is not needed to build: its libraries are looked for when a [`Context`] is opened, and
//! the error for a missing one names it. Kernels are CUDA C++ (`kernels/`), compiled at start
//! for the device of the machine.
//!
//! * [`Gpu`] has the driver's description of a GPU. [`Context`], [`Stream`], [`Event`],
//!   [`Buffer`], [`Pinned`], [`Module`] and [`Kernel`] are thin wrappers of the driver. A
//!   launch allocates nothing.
//! * [`Compiler`] makes machine code of kernels, and keeps it in a folder.
//! * [`Inputs`] brings a batch to the device in one copy. Launches read everything that changes
//!   from pass to pass from there, never from an argument.
//! * [`RowwiseOps`], [`Attention`] and [`Products`] are the operations. [`SamplingKernels`] makes
//!   tokens of their logits.
//! * Ranks exchange data from device to device by NCCL (`exchange/nccl.rs`). Ranks that share a
//!   GPU or lack NCCL exchange it through the host's memory (`exchange/host.rs`), by a
//!   [`Collective`](lockstep_collective::Collective).
//! * [`CudaBackend`] implements with all of these the operations that models ask for.
//!
//! All of them queue work on a stream and return. A result depends on its own row only, and the
//! result of attention on its own request only. Other rows of the batch, page size, chunking
//! and trees of drafts change no bit.

mod backend;
mod drafting;
mod error;
mod exchange;
mod footprint;
mod formats;
mod kernels;
mod ops;
mod passes;
mod runtime;
mod tensors;
mod version;

pub use backend::{CudaBackend, CudaOptions, CudaPasses};
pub use drafting::{LogitRows, MaskRoom, SamplingBuffers, SamplingKernels};
pub use error::CudaError;
pub use exchange::{CollectiveOptions, Nccl};
pub use footprint::CudaMemory;
pub use kernels::Source;
pub use ops::{
    Attention, Beside, BlockOps, CudaStates, Cut, HeadNorms, Indices, Operands, PagedCache,
    Product, Products, Queries, Rope, RowwiseOps, Sums, SumsWithSpace, Work, WorkLimits,
    check_experts, check_recurrence,
};
pub use passes::{Chosen, Inputs, Recorded};
pub use runtime::{
    Buffer, ComparedBits, Compiler, Context, Event, Gpu, Graph, Kernel, Module, Pinned, Stream,
    programs_not_kept,
};
pub use tensors::{CudaMatrix, CudaTensor, Element, Floats, Rows};
pub use version::Version;
