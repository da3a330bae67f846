//! The ranks that the battery runs on.

use lockstep_config::args::{DeviceArg, ParallelArgs};
use lockstep_types::DeviceKind;

/// Ranks of a group, as threads of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// What each computes on, the processor with one thread.
    pub device: DeviceKind,
    /// Each has a GPU of its own, so that data may go from one to the other and passes are
    /// recorded. Otherwise all share the first, and data passes through the host.
    pub own_gpus: bool,
    /// How many there are.
    pub tp_size: usize,
    /// DP ranks that they form, each with a part of the requests.
    pub dp_size: usize,
}

impl From<DeviceKind> for Ranks {
    /// One.
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
    /// What asks for them.
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
