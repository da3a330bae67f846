//! Collectives of a rank's data from device to device, by NVIDIA's library NCCL.
//!
//! NCCL compares nothing: ranks that ask for different operations wait for ever, on the device
//! and without an error, and so do ranks whose peer is gone. So callers make ranks agree before
//! they ask, and a thread (`watch.rs`) ends operations that take too long. After that,
//! the contents of a stream are no data: [`crate::Stream::synchronize`] returns the error
//! instead.
//!
//! The end of a communicator needs the other ranks, too: see [`shutdown`].

pub(crate) mod charge;
mod communicator;
mod library;
mod owners;
mod plane;
mod shared_communicator;
mod shutdown;
mod start;
mod warm;

pub(crate) use communicator::Communicator;
pub use library::Library as Nccl;
pub(crate) use plane::Plane;
pub(crate) use shutdown::Farewell;
pub use start::CollectiveOptions;
pub(crate) use start::agreed;
