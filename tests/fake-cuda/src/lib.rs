//! For tests: CUDA's libraries on machines without a GPU.
//!
//! One shared object plays libcuda, libnvrtc, libcublasLt and libnccl. A program that loads
//! these by name, as cudarc does, runs unchanged. Tests that depend on this crate find the
//! object when `cargo test` starts them. The same binaries, started by hand, use the machine's
//! own libraries.
//!
//! The fake does everything that CUDA allows and no program may rely on:
//!
//! * Nothing runs before somebody waits. Then streams run in an order drawn from a seed, within
//!   the limits of events; a graph's nodes do so within its edges. A missing wait shows as a
//!   result that changes with the seed.
//! * A kernel that may begin while its predecessors run does so (programmatic dependent launch):
//!   some of its blocks run up to their wait before the predecessors' first block. Reading,
//!   writing or copying before the wait shows, and a block that never waits fails its launch.
//! * Pinned memory is read when the copy runs, not when the copy is asked for.
//! * Fresh memory is NaN, and ends at a page that faults.
//! * A capture refuses the calls that CUDA refuses. A kernel that fails makes its context
//!   unusable. Memory, grids and shared memory have limits.
//! * Products are computed by the algorithm that the caller chose, and algorithms differ in the
//!   last bits of their results.
//! * Ranks that ask for different collectives wait for each other until somebody aborts them.
//!   Communicators take memory of their devices like NCCL's, for each channel and peer at the
//!   first operation between them. Operations may come to their stream later than they were
//!   asked for. Farewells and aborts wait for graphs, for the device's work and for the other
//!   ranks.
//!
//! Kernels are CUDA C++. The machine's C++ compiler makes shared objects of them, with
//! `shim/cuda_on_host.h` in front, and `shim/runtime.cpp`, which runs a fiber per thread, behind.
//! CUDA's errors are numbers; `cuGetErrorString` tells the reason of an error.
//!
//! | Variable | Meaning | Default |
//! |---|---|---|
//! | `FAKE_CUDA_SEED` | seed of the order of all work | 1 |
//! | `FAKE_CUDA_DEVICES` | number of devices; none: `cuInit` fails | 4 |
//! | `FAKE_CUDA_MEMORY` | bytes of each device | 4294967296 |
//! | `FAKE_CUDA_HIDDEN` | bytes reported as free that are not | 0 |
//! | `FAKE_CUDA_CODE` | bytes that the code of kernels takes | 0 |
//! | `FAKE_CUDA_CAPABILITY` | capability of each device: 90 for 9.0 | 90 |
//! | `FAKE_CUDA_DRIVER` | the driver's version: 13000 for 13.0 | 13000 |
//! | `FAKE_CUDA_EXCLUSIVE` | any value: contexts are refused, as if another program had the devices | |
//! | `FAKE_NVRTC_ARCHITECTURES` | architectures that are compiled for: 75,80,90 for sm_75 to sm_90 | all from 75 to 121 |
//! | `FAKE_NVRTC_BUILTINS` | `missing`: nothing compiles | |
//! | `FAKE_CUDA_FORGET` | `cuEventSynchronize` or `cuStreamWaitEvent`: that call does nothing, for tests that have to notice | |
//! | `FAKE_CUDA_HANG` | path of a file: the process makes it when it has taken memory ten times, and then hangs | |
//! | `FAKE_CUDA_FAULT` | `attend:3`: the third launch of that kernel touches an address outside of memory | |
//! | `FAKE_NCCL_KILL` | `1:40:entered`: rank 1 is killed at its 40th collective with all ranks, when it has `asked` for the collective, has `entered` it, or has `brought` its part | |
//! | `FAKE_NCCL_STUCK` | `1:3`: the call for rank 1's third collective with all ranks returns only when the communicator is aborted | |
//! | `FAKE_NCCL_REFUSE` | `1:3`: rank 1's third operation of a communicator fails when it is asked for | |
//! | `FAKE_NCCL_FAIL` | `1:2`: the second communicator that rank 1 joins fails there when all have come; 1 is its rank in the first communicator | |
//! | `NCCL_MIN_CTAS`, `NCCL_MAX_CTAS` | smallest and largest number of channels of a communicator, whatever the program wants, as for NCCL | 1, 32 |
//! | `FAKE_CUDA_EDIT` | script by which `sed` changes sources before they are compiled, for tests that have to notice | |
//! | `FAKE_CUDA_FLAGS` | flags for the C++ compiler, after its own | |
//! | `FAKE_CUDA_SANITIZE` | `thread`, `address`, `undefined` or `address,undefined`: sanitizers that kernels are compiled with | |
//! | `FAKE_CUDA_TELL` | any value: errors and their reasons are printed as they come | |
//! | `FAKE_CUDA_CACHE` | folder of compiled kernels | in `target` |
//!
//! The sanitizers' libraries have to be loaded before all others; the crate's
//! own tests show how.

mod abi;
mod arch;
mod blaslt;
mod calls;
mod driver;
mod nccl;
mod nvrtc;
mod order;
mod run;
mod settings;
mod world;

pub use calls::{brought, calls, fetched};
pub use order::{Order, heuristics, order, order_of_threads, seed};
