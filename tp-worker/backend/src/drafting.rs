//! Drafting on devices: chains and trees that a device makes without the host.

mod chain;
mod tree;
mod tree_size;

pub use chain::{ChainLimits, DeviceDrafter};
pub use tree::{DeviceTreeDrafter, TreePass};
pub use tree_size::{MOST_CANDIDATES, TreeSize};

pub(crate) use chain::broken_rule;
