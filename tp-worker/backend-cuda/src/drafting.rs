//! Tokens chosen from logits on the device, and the chains and trees of drafts made of them.

pub(crate) mod chains;
pub(crate) mod choosing;
pub(crate) mod trees;

pub(crate) use chains::{ChainInputs, Chains};
pub use choosing::{Choosing, ChoosingRoom, LogitRows};
pub(crate) use trees::{Sources, TreeLevel, Trees};
