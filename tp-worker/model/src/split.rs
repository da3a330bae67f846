//! The part of a model on each rank, and the exchanges between ranks.

mod collectives;
pub(crate) mod crossing;
mod shard;
pub(crate) mod topology;

pub use collectives::{CollectiveKind, CollectiveStep, CountedRows};
pub use shard::{Heads, Shard};
pub use topology::{Place, Topology};
