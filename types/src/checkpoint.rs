//! Forms of weight matrices in a checkpoint.

use serde::{Deserialize, Serialize};

/// Form in which a checkpoint holds its weight matrices, as its `quantization_config` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointFormat {
    /// Floats of 16 or 32 bits. Every tensor says which.
    #[default]
    Floats,
}
