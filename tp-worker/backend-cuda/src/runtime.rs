//! The driver of CUDA: contexts, memory, streams, graphs, and kernels compiled at start.
//!
//! Thin wrappers, which know no operation. All of them queue work and return, and a launch
//! allocates nothing.

pub(crate) mod bits;
mod compiler;
mod context;
mod gpu;
mod graph;
mod memory;
pub(crate) mod meter;
mod module;
mod selection;
mod staged;
mod stopwatch;
mod stream;
mod switches;
mod tape;

pub use bits::ComparedBits;
pub(crate) use compiler::Defines;
pub use compiler::{Compiler, programs_not_kept};
pub use context::Context;
pub use gpu::Gpu;
pub use graph::Graph;
pub use memory::{Buffer, Pinned};
pub(crate) use meter::Meter;
pub use module::{Kernel, Module};
pub(crate) use selection::Selection;
pub(crate) use staged::Staged;
pub(crate) use stopwatch::{CLOCK, Stopwatch};
pub(crate) use stream::Arrivals;
pub use stream::{Event, Stream};
pub(crate) use tape::{IssuedWork, Tape, TapeMode};
