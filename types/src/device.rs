//! Devices that ranks compute on, and the ways in which ranks exchange data.

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
    /// Name of the kind as an option's value.
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
    /// Kind of all devices.
    pub kind: DeviceKind,
    /// Number of the device of each node's first rank. 0 for kinds without numbers.
    pub base_gpu_id: usize,
    /// Difference between the device numbers of neighbouring ranks; with 0 all ranks of a node
    /// share one device.
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

/// Way in which ranks on GPUs exchange their data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveBackend {
    /// NCCL if every rank has it and a GPU of its own, else the host's memory.
    #[default]
    Auto,
    /// NVIDIA's library, which sends data from GPU to GPU.
    Nccl,
    /// The host's memory.
    Host,
}

impl CollectiveBackend {
    /// Name of the backend as an option's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nccl => "nccl",
            Self::Host => "host",
        }
    }
}

/// Exchange of data between ranks on GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveConfig {
    /// Backend that carries the data.
    pub backend: CollectiveBackend,
    /// Path of the NCCL library; `None` = the usual places of libraries are searched.
    pub nccl: Option<PathBuf>,
}

/// Memory of a device that is not the host's, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRoom {
    /// Bytes of the whole memory.
    pub total: u64,
    /// Bytes that no program has taken.
    pub free: u64,
}
