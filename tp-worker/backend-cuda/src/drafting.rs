//! Tokens chosen from logits on the device, and the chains and trees of drafts made of them.

pub(crate) mod chains;
pub(crate) mod sampling;
pub(crate) mod trees;

pub(crate) use chains::{ChainInputs, ChainKernels};
pub use sampling::{LogitRows, MaskRoom, SamplingBuffers, SamplingKernels};
pub(crate) use trees::{Sources, TreeKernels, TreeLevel};
