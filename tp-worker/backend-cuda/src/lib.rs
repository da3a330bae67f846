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
//! * [`Operations`], [`Attention`] and [`Products`] are the operations, and [`Choosing`] makes
//!   tokens of their logits.
//! * Ranks exchange data from device to device by NCCL (`nccl.rs`). Ranks that share a GPU or
//!   lack NCCL exchange it through the host's memory (`exchange.rs`), by a
//!   [`Collective`](lockstep_collective::Collective).
//! * [`CudaBackend`] implements with all of these the operations that models ask for.
//!
//! All of them queue work on a stream and return. A result depends on its own row only, and the
//! result of attention on its own request only. Other rows of the batch, page size, chunking
//! and trees of drafts change no bit.

mod attention;
mod backend;
mod chains;
mod choosing;
mod compiler;
mod context;
mod error;
mod exchange;
mod exchange_watch;
mod floats;
mod footprint;
mod gpu;
mod graph;
mod indices;
mod inputs;
mod lists;
mod memory;
mod meter;
mod module;
mod nccl;
mod notes;
mod operations;
mod planes;
mod products;
mod progress;
mod random;
mod recorded;
mod rows;
mod sources;
mod staged;
mod stopwatch;
mod stream;
mod sums;
mod tape;
mod tensor;
mod trees;
mod version;
mod weights;

pub use attention::{Attention, HeadNorms, PagedCache, Rope, Work, WorkLimits};
pub use backend::{CudaBackend, CudaOptions, CudaPasses};
pub use choosing::{Choosing, ChoosingRoom, LogitRows};
pub use compiler::{Compiler, Source};
pub use context::Context;
pub use error::CudaError;
pub use floats::{Element, Floats};
pub use footprint::CudaMemory;
pub use gpu::Gpu;
pub use graph::Graph;
pub use indices::Indices;
pub use inputs::{Chosen, Inputs};
pub use memory::{Buffer, Pinned};
pub use module::{Kernel, Module};
pub use nccl::{CollectiveOptions, Nccl};
pub use operations::Operations;
pub use products::{Operands, Product, Products};
pub use recorded::Recorded;
pub use rows::Rows;
pub use stream::{Event, Stream};
pub use sums::Sums;
pub use tensor::{CudaMatrix, CudaTensor};
pub use version::Version;
