//! A pass: the batch that comes to the device in one copy, and what recorded passes take.

mod inputs;
mod lists;
mod recorded;

pub use inputs::{Chosen, Inputs};
pub(crate) use inputs::{List, TreeLists};
pub(crate) use lists::Lists;
pub use recorded::Recorded;
pub(crate) use recorded::{Ledger, Share};
