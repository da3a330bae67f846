//! Collectives between tensor-parallel ranks: shared memory and TCP.
//!
//! Every implementation of [`Collective`] gives the same bits: sums run element-wise in rank
//! order, whatever the transport, the length or the number of chunks. Ranks compare their
//! operations before they read each other's data. So ranks that diverge get an error that names
//! both sides, instead of a hang or a wrong sum. Words that all ranks should know travel with
//! operations that run anyway. A dead, stuck or aborted rank ends the waits of its peers. A
//! group can be split. The groups of a rank share its connections, and fail together.
//!
//! ```
//! use lockstep_collective::{Collective, local_group};
//!
//! let ranks = local_group(2).into_iter().map(|mut member| {
//!     std::thread::spawn(move || {
//!         let mut data = [member.rank() as f32, 1.0];
//!         member.all_reduce_sum(&mut data).map(|()| data)
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().unwrap(), Ok([1.0, 2.0]));
//! }
//! ```

#![deny(unsafe_code)]

mod arguments;
mod attachment;
mod collective;
mod endpoint;
mod error;
mod group;
mod membership;
mod operation;
mod options;
mod owners;
mod parts;
mod patience;
mod shared;
mod single;
mod sum;
mod tcp;

pub use attachment::ATTACHED_WORDS;
pub use collective::Collective;
pub use error::{CollectiveError, Stall};
pub use membership::{AbortHandle, Shown};
pub use operation::{Kind, Operation};
pub use options::Options;
pub use owners::Owners;
pub use parts::Parts;
pub use patience::{Spin, is_crowded};
pub use shared::{SharedMemory, local_group, local_group_with};
pub use single::Single;
pub use tcp::{Tcp, TcpListenerHandle, Tls};
