//! Collectives between tensor-parallel ranks: shared memory and TCP.
//!
//! Every implementation of [`Collective`] gives the same bits: sums run
//! element-wise in rank order, whatever the transport, the length or the
//! number of chunks. Ranks compare what they are about to do before they read
//! each other's data, so ranks that diverge get an error that names both
//! sides instead of a hang or a wrong sum.

mod abort;
mod arguments;
mod collective;
mod error;
mod operation;
mod single;

pub use abort::AbortHandle;
pub use collective::Collective;
pub use error::CollectiveError;
pub use operation::{Kind, Operation};
pub use single::Single;
