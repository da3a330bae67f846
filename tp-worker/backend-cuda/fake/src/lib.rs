//! For tests: CUDA's libraries on machines without a GPU.
//!
//! One shared object plays libcuda, libnvrtc, libcublasLt and libnccl. A program
//! that loads these by name, as cudarc does, runs unchanged. Tests that depend on
//! this crate find it when `cargo test` starts them; started by hand, the same
//! binaries use the machine's own libraries.
//!
//! It does what CUDA allows and no program may rely on:
//!
//! * Nothing runs before somebody waits. Then streams go on in an order drawn
//!   from a seed, within what events allow; so do a graph's nodes, within its
//!   edges. A missing wait shows as a result that changes with the seed.
//! * Pinned memory is read when the copy runs, not when it is asked for.
//! * Fresh memory is NaN, and ends at a page that faults.
//! * What a capture refuses is refused; a kernel that fails leaves its context
//!   unusable; memory, grids and shared memory have limits.
//! * Products come from the algorithm that the caller chose, and algorithms
//!   differ in their last bits.
//! * Ranks that ask for different collectives wait for each other until somebody
//!   aborts them. Communicators take memory of their devices as NCCL's do, for
//!   each channel and peer when something first goes that way. What is asked of NCCL may come to its stream later; its farewells
//!   and aborts wait for graphs, for what the device runs and for the other ranks.
//!
//! Kernels are CUDA C++. The machine's C++ compiler makes shared objects of
//! them, with `shim/cuda_on_host.h` in front, which runs a fiber per thread.
//! CUDA's errors are numbers; why one came is what `cuGetErrorString` tells.
//!
//! | Variable | Meaning | Default |
//! |---|---|---|
//! | `FAKE_CUDA_SEED` | which order things take | 1 |
//! | `FAKE_CUDA_DEVICES` | number of devices; none: `cuInit` fails | 4 |
//! | `FAKE_CUDA_MEMORY` | bytes of each | 4294967296 |
//! | `FAKE_CUDA_HIDDEN` | bytes that are said to be free beside those that are | 0 |
//! | `FAKE_CUDA_CODE` | bytes that the code of kernels takes | 0 |
//! | `FAKE_CUDA_CAPABILITY` | of each: 90 for 9.0 | 90 |
//! | `FAKE_CUDA_DRIVER` | the driver's version: 13000 for 13.0 | 13000 |
//! | `FAKE_CUDA_EXCLUSIVE` | any value: contexts are refused, as another program has the devices | |
//! | `FAKE_NVRTC_ARCHITECTURES` | what is compiled for: 75,80,90 for sm_75 to sm_90 | all from 75 to 121 |
//! | `FAKE_NVRTC_BUILTINS` | `missing`: nothing compiles | |
//! | `FAKE_CUDA_FORGET` | `cuEventSynchronize` or `cuStreamWaitEvent`: does nothing, for tests that have to notice | |
//! | `FAKE_CUDA_HANG` | a file that is made when the process has taken memory ten times, and then hangs | |
//! | `FAKE_CUDA_FAULT` | `attend:3`: that launch of that kernel touches what is no memory | |
//! | `FAKE_NCCL_KILL` | `1:40:entered`: rank 1 is killed at its 40th collective with all ranks: when it has `asked` for it, has `entered` it, or has `brought` its part | |
//! | `FAKE_NCCL_STUCK` | `1:3`: rank 1's third collective with all ranks is asked for by a call that returns when the communicator is aborted | |
//! | `FAKE_NCCL_REFUSE` | `1:3`: rank 1's third operation of a communicator fails as it is asked for | |
//! | `FAKE_NCCL_FAIL` | `1:2`: the second communicator that rank 1 joins fails there when all have come; the rank is that in the first one | |
//! | `NCCL_MIN_CTAS`, `NCCL_MAX_CTAS` | channels of a communicator, at least and at most, whatever the program wants: as NCCL takes them | 1, 32 |
//! | `FAKE_CUDA_EDIT` | what `sed` does to sources before they are compiled, for tests that have to notice | |
//! | `FAKE_CUDA_FLAGS` | flags for the C++ compiler, after its own | |
//! | `FAKE_CUDA_SANITIZE` | `thread`, `address`, `undefined` or `address,undefined`: how kernels are compiled | |
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
