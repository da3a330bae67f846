//! Decides how deep a group drafts in its next steps, alike on every rank.
//!
//! Every rank brings a [`Row`] to every step. The rows of all ranks reach all ranks with the
//! step's first collective. Each rank then runs [`Decider::decide`] over the same rows and
//! comes to the same depth, for the step [`LAG`] after this one. Statistics of ranks are
//! summed, not voted on.
//!
//! Nothing here uses floats, clocks, randomness or the order of a hash map, so equal rows give
//! equal depths on any machine.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod agreed;
mod config;
mod cost;
mod crowd;
mod decider;
mod digest;
mod long_prompts;
mod policy;
mod row;
#[cfg(test)]
mod testing;

pub use agreed::{Agreed, LAG};
pub use config::{AdaptiveConfig, BatchSlot, Tier};
pub use cost::{Costs, Loads, StepSize};
pub use crowd::Crowd;
pub use decider::{Decider, UnknownPolicy};
pub use digest::Digest;
pub use long_prompts::LongPrompts;
pub use policy::{Moment, Outlook, Policies, Policy, PolicyFactory};
pub use row::{DepthRange, POSITIONS, Row, Seen};
