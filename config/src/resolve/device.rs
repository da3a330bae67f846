//! The device that computes the model.

use lockstep_types::{
    ConfigError, DeviceConfig, DeviceKind, DeviceRoom, EngineShape, Footprint, KvCacheDtype,
    MatrixRole, WeightFormat,
};

use super::format;
use crate::args::{DeviceArg, KvCacheDtypeArg, ServeArgs};

/// The devices, and the memory of each on this node if it is not the host's.
#[derive(Default)]
pub(super) struct Device {
    pub(super) config: DeviceConfig,
    pub(super) rooms: Vec<DeviceRoom>,
    /// True if the device was not requested: the processor may take over if it does not serve.
    pub(super) chosen: bool,
    /// The reason why another device was not taken, if people should know it.
    pub(super) note: Option<String>,
}

/// The requested device. With `auto`, which is the default, a GPU, unless it can't be used or
/// does not serve an option.
pub(super) fn resolve(args: &ServeArgs, footprint: &dyn Footprint) -> Result<Device, ConfigError> {
    let named = named(args);
    // Asking a GPU for its room opens it, so options that no GPU serves are refused before.
    match (args.parallel.device.unwrap_or(DeviceArg::Auto), named) {
        (DeviceArg::Cpu, None) => Ok(Device::default()),
        (DeviceArg::Cpu, Some((option, number))) => Err(ConfigError::conflict(
            format!("{option} {number}"),
            "--device cpu",
            "the processor has no such numbers",
            "Leave it out, or give --device cuda",
        )),
        (DeviceArg::Cuda, _) => match unserved(args, footprint) {
            Some(option) => Err(option.conflict("--device cuda")),
            None => gpus(args, footprint).map_err(|missing| {
                let remedy = "`lockstep doctor` looks at everything that a GPU needs";
                missing.error("--device", "cuda", remedy)
            }),
        },
        // A user who names a GPU wants that one only.
        (DeviceArg::Auto, Some((option, number))) => match unserved(args, footprint) {
            Some(unserved) => Err(unserved.conflict(&format!("{option} {number}"))),
            None => gpus(args, footprint).map_err(|missing| {
                let remedy = "Leave it out, so that --device auto may take the processor";
                missing.error(option, number, remedy)
            }),
        },
        (DeviceArg::Auto, None) => {
            let why = match unserved(args, footprint) {
                Some(option) => format!("{}, which GPUs do not serve", option.given),
                None => match gpus(args, footprint) {
                    Ok(device) => {
                        return Ok(Device {
                            chosen: true,
                            ..device
                        });
                    }
                    Err(missing) => missing.why,
                },
            };
            // Who has no GPU, and asked for none, need not hear of that.
            let told = args.parallel.device.is_some() || footprint.exists(DeviceKind::Cuda);
            Ok(if told {
                processor(&why)
            } else {
                Device::default()
            })
        }
    }
}

/// The kernels that are requested by name.
pub(super) fn kernels(
    args: &ServeArgs,
    footprint: &dyn Footprint,
) -> Result<Option<&'static str>, ConfigError> {
    let remedy = "`lockstep doctor` lists those of this machine";
    let find = |name: &String| {
        let found = footprint.kernels(DeviceKind::Cpu, name);
        found.map_err(|why| ConfigError::value("--isa", name, why, remedy))
    };
    args.parallel.isa.as_ref().map(find).transpose()
}

/// The option that says which GPUs are wanted.
fn named(args: &ServeArgs) -> Option<(&'static str, usize)> {
    let parallel = &args.parallel;
    let base = parallel.base_gpu_id.map(|id| ("--base-gpu-id", id));
    base.or_else(|| parallel.gpu_id_step.map(|step| ("--gpu-id-step", step)))
}

/// Refuses a model that the device can't compute, before anything is loaded.
pub(super) fn check(
    device: &Device,
    engine: &EngineShape<'_>,
    footprint: &dyn Footprint,
) -> Result<(), ConfigError> {
    footprint.serves(engine).map_err(|why| {
        let path = format!("--model-path {}", engine.model.path.display());
        let kind = device.config.kind;
        let (first, remedy) = match kind {
            // Processors compute all models, but not with caches of every type.
            DeviceKind::Cpu if engine.kv_dtype == KvCacheDtype::Int8 => (
                format!("--kv-cache-dtype {}", engine.kv_dtype.name()),
                "Give --kv-cache-dtype bfloat16",
            ),
            DeviceKind::Cpu => (format!("--device {}", kind.name()), "Give another model"),
            DeviceKind::Cuda => (
                format!("--device {}", kind.name()),
                "Give --device cpu, or another model",
            ),
        };
        ConfigError::conflict(first, path, why, remedy)
    })
}

/// The processor, in place of a GPU that `--device auto` cannot take.
pub(super) fn processor(why: &str) -> Device {
    Device {
        note: Some(format!("--device auto takes the processor: {why}")),
        ..Device::default()
    }
}

/// A GPU that can't be used.
struct Missing {
    why: String,
    /// Number of this node's ranks and their devices, if the GPU is not the first rank's;
    /// `None` if it is.
    ranks: Option<(usize, DeviceConfig)>,
}

impl Missing {
    /// The error if `option` asks for the first rank's GPU.
    fn error(
        self,
        option: &'static str,
        value: impl std::fmt::Display,
        remedy: &'static str,
    ) -> ConfigError {
        match self.ranks {
            None => ConfigError::value(option, value, self.why, remedy),
            Some((ranks, config)) => ConfigError::conflict(
                format!("{option} {value}"),
                format!("{ranks} ranks of a node"),
                self.why,
                format!(
                    "Give --gpu-id-step 0, with which they share GPU {}, or a smaller --tp-size, or \
                     --device cpu",
                    config.base_gpu_id
                ),
            ),
        }
    }
}

/// The GPUs of this node's ranks, and their room.
fn gpus(args: &ServeArgs, footprint: &dyn Footprint) -> Result<Device, Missing> {
    let parallel = &args.parallel;
    let config = DeviceConfig {
        kind: DeviceKind::Cuda,
        base_gpu_id: parallel.base_gpu_id.unwrap_or(0),
        gpu_id_step: parallel.gpu_id_step.unwrap_or(1),
    };
    let local = parallel.tp_size.unwrap_or(1) / parallel.nnodes.unwrap_or(1);
    let mut rooms = Vec::new();
    for rank in 0..config.count(local.max(1)) {
        let room = footprint.room(config.kind, config.of_rank(rank));
        rooms.extend(room.map_err(|why| Missing {
            why,
            ranks: (rank > 0).then_some((local, config)),
        })?);
    }
    Ok(Device {
        config,
        rooms,
        ..Device::default()
    })
}

/// An option that GPUs don't serve.
struct Unserved {
    given: String,
    why: &'static str,
    remedy: &'static str,
}

impl Unserved {
    fn conflict(self, with: &str) -> ConfigError {
        ConfigError::conflict(self.given, with, self.why, self.remedy)
    }
}

/// The first given option that GPUs don't serve.
fn unserved(args: &ServeArgs, footprint: &dyn Footprint) -> Option<Unserved> {
    const OR_CPU: &str = "Leave it out, or give --device cpu";
    let parallel = &args.parallel;
    let quantization = format::quantization(args);
    let weights = MatrixRole::ROUNDED.into_iter().find_map(|role| {
        let format = WeightFormat::of(quantization, role);
        let served = footprint.serves_format(DeviceKind::Cuda, format, role);
        served.err()
    });
    let int8_cache = args.memory.kv_cache_dtype == Some(KvCacheDtypeArg::Int8);
    let options = [
        weights.map(|why| Unserved {
            given: format!("--quantization {}", quantization.name()),
            why,
            remedy: OR_CPU,
        }),
        int8_cache.then(|| Unserved {
            given: "--kv-cache-dtype int8".to_owned(),
            why: "GPUs cache keys and values as floats",
            remedy: "Give --kv-cache-dtype bfloat16, or --device cpu",
        }),
        parallel.isa.as_ref().map(|name| Unserved {
            given: format!("--isa {name}"),
            why: "a GPU computes, and no core",
            remedy: OR_CPU,
        }),
        parallel.threads_per_rank.map(|threads| Unserved {
            given: format!("--threads-per-rank {threads}"),
            why: "one thread drives a GPU",
            remedy: OR_CPU,
        }),
        parallel.pin_cores.as_ref().map(|cores| Unserved {
            given: format!("--pin-cores {cores}"),
            why: "a GPU computes, and no core",
            remedy: OR_CPU,
        }),
    ];
    options.into_iter().flatten().next()
}

#[cfg(test)]
mod tests;
