//! The ranks that the battery runs on.

use lockstep_config::args::{DeviceArg, ParallelArgs};
use lockstep_types::DeviceKind;

/// Ranks of a group, as threads of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// The kind of device that each rank computes on. A rank on the CPU has one thread.
    pub device: DeviceKind,
    /// True if each rank has a GPU of its own: data may then go from GPU to GPU, and passes are
    /// recorded. If false, all ranks share the first GPU, and data passes through the host.
    pub own_gpus: bool,
    /// Number of ranks.
    pub tp_size: usize,
    /// Number of DP ranks that the ranks form. Each has a part of the requests.
    pub dp_size: usize,
}

impl From<DeviceKind> for Ranks {
    /// One rank on a device of that kind.
    fn from(device: DeviceKind) -> Self {
        Self {
            device,
            own_gpus: false,
            tp_size: 1,
            dp_size: 1,
        }
    }
}

impl Ranks {
    /// Returns the arguments that configure these ranks.
    pub(super) fn args(self) -> ParallelArgs {
        let mut args = ParallelArgs {
            tp_size: Some(self.tp_size),
            dp_size: Some(self.dp_size),
            enable_dp_attention: self.dp_size > 1,
            ..ParallelArgs::default()
        };
        match self.device {
            DeviceKind::Cpu => args.threads_per_rank = Some(1),
            DeviceKind::Cuda => {
                args.device = Some(DeviceArg::Cuda);
                args.gpu_id_step = Some(usize::from(self.own_gpus));
            }
        }
        args
    }
}
