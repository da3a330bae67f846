//! Places in a node's run directory.

use std::path::PathBuf;

use crate::NodeConfig;

/// Name of the configuration file.
pub(crate) const CONFIG_FILE: &str = "config.json";

impl NodeConfig {
    /// The launcher's socket, for its children.
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir.join("control.sock")
    }
    /// The scheduler's socket for tokenizer-managers.
    pub fn frontend_socket(&self) -> PathBuf {
        self.run_dir.join("frontend.sock")
    }
    /// The scheduler's socket for the workers of its node.
    pub fn workers_socket(&self) -> PathBuf {
        self.run_dir.join("workers.sock")
    }
    /// The resolved configuration, for this node's processes.
    pub fn config_file(&self) -> PathBuf {
        self.run_dir.join(CONFIG_FILE)
    }
}
