//! The way in which ranks on GPUs exchange their data.

use lockstep_types::{
    CollectiveBackend, CollectiveConfig, ConfigError, DeviceConfig, DeviceKind, Footprint,
    ParallelConfig,
};

use super::device::Device;
use super::parallel::{self, Ranks};
use super::{Hardware, ModelConfig};
use crate::args::{CollectiveBackendArg, ParallelArgs, ServeArgs};

const PATH: &str = "--nccl-path";

/// The ranks, and the way of their data.
pub(super) fn of_ranks(
    args: &ServeArgs,
    model: &ModelConfig,
    device: &Device,
    hardware: &Hardware,
    footprint: &dyn Footprint,
) -> Result<Ranks, ConfigError> {
    let mut ranks = parallel::resolve(args, model, hardware, device)?;
    let way = resolve(&args.parallel, &ranks.parallel, &device.config, footprint)?;
    ranks.parallel.collectives = way;
    Ok(ranks)
}

/// The requested way, or the way through the host if this node sees that no other is possible.
/// Ranks of several nodes agree when they start.
fn resolve(
    args: &ParallelArgs,
    parallel: &ParallelConfig,
    device: &DeviceConfig,
    footprint: &dyn Footprint,
) -> Result<CollectiveConfig, ConfigError> {
    let backend = match args.collective_backend {
        Some(CollectiveBackendArg::Nccl) => CollectiveBackend::Nccl,
        Some(CollectiveBackendArg::Host) => CollectiveBackend::Host,
        Some(CollectiveBackendArg::Auto) | None => CollectiveBackend::Auto,
    };
    let named = args.collective_backend.map(|_| {
        let option = format!("--collective-backend {}", backend.name());
        (option, backend == CollectiveBackend::Nccl)
    });
    let path = args.nccl_path.as_ref();
    let path = path.map(|path| (format!("{PATH} {}", path.display()), true));
    for (option, needs_nccl) in named.iter().chain(&path) {
        check(option, *needs_nccl, parallel, device)?;
    }
    if let (Some((path, _)), Some((backend, false))) = (&path, &named)
        && args.collective_backend == Some(CollectiveBackendArg::Host)
    {
        let why = "data that passes through the host needs no NCCL";
        let remedy = "Leave one of them out";
        return Err(ConfigError::conflict(
            path.clone(),
            backend.clone(),
            why,
            remedy,
        ));
    }
    let nccl = args.nccl_path.clone();
    let chosen = CollectiveConfig { backend, nccl };
    if device.kind == DeviceKind::Cpu || parallel.tp_size == 1 {
        return Ok(chosen);
    }
    let local = parallel.tp_size / parallel.nnodes;
    let host = CollectiveConfig {
        backend: CollectiveBackend::Host,
        nccl: None,
    };
    if backend == CollectiveBackend::Host || device.ranks_per_device(local) > 1 {
        return Ok(host);
    }
    match footprint.collectives(device.kind, chosen.nccl.as_deref()) {
        Ok(_) => Ok(chosen),
        Err(why) => match path.or(named.filter(|(_, nccl)| *nccl)) {
            Some((option, _)) => {
                let (option, value) = option.split_once(' ').unwrap_or((&option, ""));
                let name = if option == PATH {
                    PATH
                } else {
                    "--collective-backend"
                };
                let remedy = "`lockstep doctor` looks for NCCL";
                Err(ConfigError::value(name, value, why, remedy))
            }
            // Other nodes may have NCCL: all ranks agree when they start.
            None if parallel.nnodes > 1 => Ok(chosen),
            None => Ok(host),
        },
    }
}

/// Refuses an option that would have no effect.
fn check(
    option: &str,
    needs_nccl: bool,
    parallel: &ParallelConfig,
    device: &DeviceConfig,
) -> Result<(), ConfigError> {
    let conflict = |with: String, why, remedy: &str| {
        Err(ConfigError::conflict(
            option.to_owned(),
            with,
            why,
            remedy.to_owned(),
        ))
    };
    if device.kind != DeviceKind::Cuda {
        let with = format!("--device {}", device.kind.name());
        let remedy = "Leave it out, or give --device cuda";
        return conflict(with, "only GPUs have several ways", remedy);
    }
    if parallel.tp_size == 1 {
        let remedy = "Leave it out, or give a larger --tp-size";
        return conflict(
            "--tp-size 1".to_owned(),
            "a rank alone exchanges nothing",
            remedy,
        );
    }
    let local = parallel.tp_size / parallel.nnodes;
    if needs_nccl && device.ranks_per_device(local) > 1 {
        let with = format!("--gpu-id-step {}", device.gpu_id_step);
        let remedy = "Leave it out, or give --gpu-id-step 1";
        return conflict(with, "NCCL refuses ranks that share a GPU", remedy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::resolve_line;

    #[test]
    fn an_option_without_effect_is_refused() {
        for (line, parts) in [
            (
                "--collective-backend host",
                ["--device cpu", "--device cuda"],
            ),
            (
                "--device cuda --nccl-path x",
                ["--nccl-path x", "--tp-size 1"],
            ),
            (
                "--device cuda --tp 2 --gpu-id-step 0 --nccl-path x",
                ["--nccl-path x", "share a GPU"],
            ),
        ] {
            let error = resolve_line(line).expect_err(line).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
