//! What ranks compute on.

use std::path::PathBuf;

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
    /// Number of the first rank's on each node. 0 where the kind has no numbers.
    pub base_gpu_id: usize,
    /// How much higher the next rank's is; with 0 a node's ranks share one device.
    pub gpu_id_step: usize,
}

impl DeviceConfig {
    /// Number of the device of the rank that is the `local`-th of its node.
    pub fn of_rank(&self, local: usize) -> usize {
        let step = self.gpu_id_step.saturating_mul(local);
        self.base_gpu_id.saturating_add(step)
    }

    /// Devices of a node's `local` ranks.
    pub fn count(&self, local: usize) -> usize {
        if self.gpu_id_step == 0 {
            local.min(1)
        } else {
            local
        }
    }

    /// Ranks that share a device, of a node's `local` ranks.
    pub fn ranks_per_device(&self, local: usize) -> usize {
        local / self.count(local).max(1)
    }
}

/// Which way ranks on GPUs exchange their data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveBackend {
    /// By NCCL, where every rank has it and a GPU of its own; otherwise through the
    /// host's memory.
    #[default]
    Auto,
    /// From GPU to GPU, by NVIDIA's library.
    Nccl,
    /// Through the host's memory.
    Host,
}

impl CollectiveBackend {
    /// As options name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nccl => "nccl",
            Self::Host => "host",
        }
    }
}

/// How ranks on GPUs exchange their data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveConfig {
    /// Which way.
    pub backend: CollectiveBackend,
    /// Where NCCL is; `None`: where libraries are looked for.
    pub nccl: Option<PathBuf>,
}

/// Memory of a device that is not the host's, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRoom {
    /// In all.
    pub total: u64,
    /// What nobody has taken.
    pub free: u64,
}
