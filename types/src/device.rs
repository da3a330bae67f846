//! What ranks compute on.

use serde::{Deserialize, Serialize};

/// A kind of device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Cores of the host.
    #[default]
    Cpu,
    /// NVIDIA's GPUs.
    Cuda,
}

impl DeviceKind {
    /// As options name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// The devices of all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceConfig {
    /// Their kind.
    pub kind: DeviceKind,
    /// Number of the first rank's on each node; the others have those behind it.
    /// 0 where the kind has no numbers.
    pub base_gpu_id: usize,
}

/// Memory of a device that is not the host's, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRoom {
    /// In all.
    pub total: u64,
    /// What nobody has taken.
    pub free: u64,
}
