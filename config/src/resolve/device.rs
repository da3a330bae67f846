//! What the model is computed on.

use lockstep_types::{ConfigError, DeviceConfig, DeviceKind, DeviceRoom, EngineShape, Footprint};

use crate::args::{DeviceArg, KvCacheDtypeArg, QuantizationArg, ServeArgs};

/// The devices, and their memory where that is not the host's.
#[derive(Default)]
pub(super) struct Device {
    pub(super) config: DeviceConfig,
    pub(super) room: Option<DeviceRoom>,
    /// It was not asked for: where it does not serve, the processor may.
    pub(super) chosen: bool,
    /// Why it is not another one, where that should be known.
    pub(super) note: Option<String>,
}

/// The device that is asked for; with `auto` a GPU, unless it can't be used or
/// can't serve what is asked for.
pub(super) fn resolve(args: &ServeArgs, footprint: &dyn Footprint) -> Result<Device, ConfigError> {
    if let Some(name) = &args.parallel.isa {
        let kernels = footprint.kernels(DeviceKind::Cpu, name);
        let remedy = "`lockstep doctor` lists those of this machine";
        kernels.map_err(|why| ConfigError::value("--isa", name, why, remedy))?;
    }
    let given = args.parallel.base_gpu_id;
    let number = given.unwrap_or(0);
    let room = || footprint.room(DeviceKind::Cuda, number);
    // Whoever asks a GPU for its room opens it: not for options that none serves.
    match (args.parallel.device.unwrap_or(DeviceArg::Cpu), given) {
        (DeviceArg::Cpu, None) => Ok(Device::default()),
        (DeviceArg::Cpu, Some(number)) => Err(ConfigError::conflict(
            format!("--base-gpu-id {number}"),
            "--device cpu",
            "the processor has no such number",
            "Leave it out, or give --device cuda",
        )),
        (DeviceArg::Cuda, _) => match unserved(args) {
            Some(option) => Err(option.conflict("--device cuda")),
            None => room().map(|room| gpu(number, room)).map_err(|why| {
                let remedy = "`lockstep doctor` looks at everything that a GPU needs";
                ConfigError::value("--device", "cuda", why, remedy)
            }),
        },
        // Who names a GPU wants none but that one.
        (DeviceArg::Auto, Some(_)) => match unserved(args) {
            Some(option) => Err(option.conflict(&format!("--base-gpu-id {number}"))),
            None => room().map(|room| gpu(number, room)).map_err(|why| {
                let remedy = "Leave it out, so that --device auto may take the processor";
                ConfigError::value("--base-gpu-id", number, why, remedy)
            }),
        },
        (DeviceArg::Auto, None) => {
            let why = match unserved(args) {
                Some(option) => format!("{}, which GPUs do not serve", option.given),
                None => match room() {
                    Ok(room) => {
                        return Ok(Device {
                            chosen: true,
                            ..gpu(number, room)
                        });
                    }
                    Err(why) => why,
                },
            };
            Ok(processor(&why))
        }
    }
}

/// Refuses a model that the device can't compute, before anything is loaded.
pub(super) fn check(
    device: &Device,
    engine: &EngineShape<'_>,
    footprint: &dyn Footprint,
) -> Result<(), ConfigError> {
    footprint.serves(engine).map_err(|why| {
        let path = engine.model.path.display();
        let first = format!("--device {}", device.config.kind.name());
        let remedy = "Give --device cpu, or another model";
        ConfigError::conflict(first, format!("--model-path {path}"), why, remedy)
    })
}

/// The processor, in place of a GPU that `--device auto` cannot take.
pub(super) fn processor(why: &str) -> Device {
    Device {
        note: Some(format!("--device auto takes the processor: {why}")),
        ..Device::default()
    }
}

fn gpu(number: usize, room: Option<DeviceRoom>) -> Device {
    Device {
        config: DeviceConfig {
            kind: DeviceKind::Cuda,
            base_gpu_id: number,
        },
        room,
        ..Device::default()
    }
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

/// The first option given that a GPU does not serve.
fn unserved(args: &ServeArgs) -> Option<Unserved> {
    const OR_CPU: &str = "Leave it out, or give --device cpu";
    let parallel = &args.parallel;
    let ranks = parallel.tp_size.filter(|ranks| *ranks > 1);
    let quantized = match args.model.quantization {
        Some(QuantizationArg::Int8) => Some("int8"),
        Some(QuantizationArg::Int4) => Some("int4"),
        Some(QuantizationArg::None) | None => None,
    };
    let int8_cache = args.memory.kv_cache_dtype == Some(KvCacheDtypeArg::Int8);
    let dp_ranks = parallel.dp_size.filter(|ranks| *ranks > 1);
    let options = [
        dp_ranks.map(|ranks| Unserved {
            given: format!("--dp-size {ranks}"),
            why: "one rank computes on a GPU, and DP ranks are several",
            remedy: "Leave --dp-size and --enable-dp-attention out, with --tp-size 1; or give \
                     --device cpu",
        }),
        ranks.map(|ranks| Unserved {
            given: format!("--tp-size {ranks}"),
            why: "a model is not split over GPUs",
            remedy: "Give --tp-size 1, or --device cpu",
        }),
        quantized.map(|format| Unserved {
            given: format!("--quantization {format}"),
            why: "GPUs have no quantized weights",
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
