//! Collectives of a rank's data from device to device, by NVIDIA's library NCCL.
//!
//! NCCL compares nothing: ranks that ask for different things, and those whose
//! peer is gone, wait for ever, on the device and without an error. So whoever
//! uses it sees to it that ranks agree before they ask, and a thread of its own
//! ([`crate::watched`]) ends what takes too long. What a stream brings after that is
//! nobody's data; [`crate::Stream::synchronize`] tells the error instead.
//!
//! Nor is the end of a communicator a matter of one rank: see [`ending`].

pub(crate) mod charge;
mod communicator;
mod ending;
mod known;
mod library;
mod owners;
mod plane;
mod start;
mod warm;

pub(crate) use communicator::Communicator;
pub(crate) use ending::Farewell;
pub use library::Library as Nccl;
pub(crate) use plane::Plane;
pub use start::CollectiveOptions;
pub(crate) use start::agreed;
