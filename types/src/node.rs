//! Paths in a node's run directory.

use std::fmt;
use std::path::PathBuf;

use crate::NodeConfig;

impl NodeConfig {
    /// Name of the resolved configuration's file in the run directory.
    pub const CONFIG_FILE: &str = "config.json";

    /// Path of the launcher's socket, for its children.
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir.join("control.sock")
    }
    /// Path of the scheduler's socket for tokenizer-managers.
    pub fn frontend_socket(&self) -> PathBuf {
        self.run_dir.join("frontend.sock")
    }
    /// Path of the scheduler's socket for the workers of its node.
    pub fn workers_socket(&self) -> PathBuf {
        self.run_dir.join("workers.sock")
    }
    /// Path of the file with the depths that an operator allows. The file outlives a scheduler
    /// that died, for the next one.
    pub fn depth_range_file(&self) -> PathBuf {
        self.run_dir.join("depth-range.json")
    }
    /// Path of the resolved configuration, for this node's processes.
    pub fn config_file(&self) -> PathBuf {
        self.run_dir.join(Self::CONFIG_FILE)
    }
}

/// Omits the secrets, so that no log line can show them.
impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node_rank,
            run_dir,
            cores,
            weight_cache,
            weight_update_dir,
            lora_paths,
            lora_dir,
            api_key,
            admin_api_key,
            tls,
            dist_tls,
            dist_secret,
            log,
            log_json,
            traces,
        } = self;
        f.debug_struct("NodeConfig")
            .field("node_rank", node_rank)
            .field("run_dir", run_dir)
            .field("cores", cores)
            .field("weight_cache", weight_cache)
            .field("weight_update_dir", weight_update_dir)
            .field("lora_paths", lora_paths)
            .field("lora_dir", lora_dir)
            .field("api_key", &api_key.as_ref().map(|_| "***"))
            .field("admin_api_key", &admin_api_key.as_ref().map(|_| "***"))
            .field("tls", tls)
            .field("dist_tls", dist_tls)
            .field("dist_secret", &dist_secret.as_ref().map(|_| "***"))
            .field("log", log)
            .field("log_json", log_json)
            .field("traces", traces)
            .finish()
    }
}
