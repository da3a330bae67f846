//! Drafting on devices: chains and trees that a device makes without the host.

mod chain;
mod tree;

pub use chain::{ChainLimits, DeviceDrafter};
pub use tree::{DeviceTreeDrafter, TreePass};

pub(crate) use chain::broken_rule;
