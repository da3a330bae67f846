//! The resolved configuration as a file, from the launcher to its children.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use lockstep_types::{EngineConfig, NodeConfig};

/// Configuration that the launcher gives to every process of its node.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Settings that all processes share.
    pub engine: EngineConfig,
    /// Settings of this node, secrets included.
    pub node: NodeConfig,
    /// The result of [`crate::hash`], computed once: numbers read back from a file may differ
    /// in their last digit.
    pub hash: String,
    /// Version of the program that wrote the file.
    version: String,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A failure to write or to read the file.
#[derive(Debug, thiserror::Error)]
#[error("configuration file {}: {message}", path.display())]
pub struct ConfigFileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Description of the failure.
    pub message: String,
}

impl ConfigFile {
    /// Bundles a resolved configuration with its hash.
    pub fn new(engine: EngineConfig, node: NodeConfig) -> Self {
        let hash = crate::hash(&engine);
        let version = VERSION.to_owned();
        Self {
            engine,
            node,
            hash,
            version,
        }
    }

    /// Writes the file into the node's run directory, readable by this user alone.
    ///
    /// # Errors
    /// If the file exists already or cannot be written.
    pub fn write(&self) -> Result<(), ConfigFileError> {
        let path = self.node.config_file();
        let failed = |message: String| ConfigFileError {
            path: path.clone(),
            message,
        };
        let bytes = serde_json::to_vec(self).map_err(|error| failed(error.to_string()))?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&bytes))
            .map_err(|error| failed(error.to_string()))
    }

    /// Reads the file in `run_dir`.
    ///
    /// # Errors
    /// If the file is missing, malformed, or written by another version.
    pub fn read(run_dir: &Path) -> Result<Self, ConfigFileError> {
        let path = run_dir.join(NodeConfig::CONFIG_FILE);
        let failed = |message: String| ConfigFileError {
            path: path.clone(),
            message,
        };
        let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let file: Self =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        if file.version != VERSION {
            return Err(failed("written by another version of this program".into()));
        }
        Ok(file)
    }
}
