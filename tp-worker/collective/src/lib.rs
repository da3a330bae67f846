//! Collectives between tensor-parallel ranks: shared memory and TCP.
//!
//! Every implementation of [`Collective`] gives the same bits: sums run
//! element-wise in rank order, whatever the transport, the length or the
//! number of chunks. Ranks compare what they are about to do before they read
//! each other's data, so ranks that diverge get an error that names both
//! sides instead of a hang or a wrong sum.

#![deny(unsafe_code)]

mod abort;
mod arguments;
mod collective;
mod endpoint;
mod error;
mod group;
mod operation;
mod options;
mod shared;
mod single;
mod sum;

pub use abort::AbortHandle;
pub use collective::Collective;
pub use error::CollectiveError;
pub use operation::{Kind, Operation};
pub use options::Options;
pub use shared::{SharedMemory, local_group, local_group_with};
pub use single::Single;
