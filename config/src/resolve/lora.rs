//! Options of adapters.

use lockstep_types::{
    AdapterLimits, ConfigError, DeviceKind, LoadFormat, ModelConfig, NamedAdapter, ServerConfig,
};

use crate::args::{LoraArgs, ServeArgs};

/// Adapters in memory, where the option is not given; it is SGLang's default.
const PLACES: u16 = 8;
/// Largest rank, where the option is not given; it is vLLM's default.
const RANK: usize = 16;

/// Resolves the limits of adapters for ranks on a `device`.
pub(super) fn limits(args: &ServeArgs, device: DeviceKind) -> Result<AdapterLimits, ConfigError> {
    let given = &args.lora;
    let wanted = given.enable_lora;
    if wanted == Some(false) && !given.lora_paths.is_empty() {
        return Err(ConfigError::conflict(
            "--enable-lora=false",
            "--lora-paths",
            "adapters that are named are served",
            "Leave one of them out",
        ));
    }
    if wanted != Some(true) && given.lora_paths.is_empty() {
        return without(given);
    }
    if device != DeviceKind::Cpu {
        return Err(ConfigError::conflict(
            asked(given),
            "--device",
            "adapters are served on processors alone",
            "Give --device cpu, or merge the adapter into the model's weights",
        ));
    }
    if given.lora_paths.is_empty() && given.lora_dir.is_none() {
        return Err(ConfigError::value(
            "--enable-lora",
            true,
            "no adapter could be loaded",
            "Name adapters with --lora-paths, or a folder of adapters with --lora-dir",
        ));
    }
    let places = given.max_loras_per_batch.unwrap_or(PLACES);
    if given.lora_paths.len() > usize::from(places) {
        return Err(ConfigError::value(
            "--max-loras-per-batch",
            places,
            format!("--lora-paths names {}", given.lora_paths.len()),
            "Give as many at least",
        ));
    }
    Ok(AdapterLimits {
        places,
        rank: given.max_lora_rank.unwrap_or(RANK),
    })
}

/// The limits of a server without adapters, on which no option of adapters has an effect.
fn without(given: &LoraArgs) -> Result<AdapterLimits, ConfigError> {
    let folder = given.lora_dir.as_ref();
    let set = [
        ("--lora-dir", folder.map(|dir| dir.display().to_string())),
        (
            "--max-loras-per-batch",
            given.max_loras_per_batch.map(|count| count.to_string()),
        ),
        (
            "--max-lora-rank",
            given.max_lora_rank.map(|rank| rank.to_string()),
        ),
    ];
    let set = set
        .into_iter()
        .find_map(|(option, value)| Some((option, value?)));
    match set {
        None => Ok(AdapterLimits::default()),
        Some((option, value)) => Err(ConfigError::value(
            option,
            value,
            "this server serves no adapters",
            "Give --enable-lora too",
        )),
    }
}

fn asked(given: &LoraArgs) -> &'static str {
    match given.enable_lora {
        Some(true) => "--enable-lora",
        _ => "--lora-paths",
    }
}

/// Checks names and folders of the adapters of the start.
pub(super) fn at_start(
    args: &ServeArgs,
    model: &ModelConfig,
) -> Result<Vec<NamedAdapter>, ConfigError> {
    let adapters = &args.lora.lora_paths;
    if model.load_format == LoadFormat::Dummy && !adapters.is_empty() {
        return Err(ConfigError::conflict(
            "--lora-paths",
            "--load-format dummy",
            "adapters of weights that nobody trained mean nothing",
            "Leave one of them out",
        ));
    }
    for (at, NamedAdapter { name, path }) in adapters.iter().enumerate() {
        if adapters[..at].iter().any(|other| other.name == *name) {
            return wrong(
                name,
                "is named twice",
                "Give each adapter a name of its own",
            );
        }
        if !path.is_dir() {
            let folder = path.display().to_string();
            return wrong(
                &folder,
                "there is no such folder",
                "Name the adapter's folder",
            );
        }
    }
    Ok(adapters.clone())
}

/// Checks that no adapter of the start is called as the model.
pub(super) fn names(args: &ServeArgs, server: &ServerConfig) -> Result<(), ConfigError> {
    let mut names = args.lora.lora_paths.iter().map(|adapter| &adapter.name);
    match names.find(|name| server.is_model_name(name)) {
        None => Ok(()),
        Some(name) => wrong(
            name,
            "is a name of the model",
            "Give the adapter another name",
        ),
    }
}

fn wrong<T>(value: &str, why: &str, remedy: &str) -> Result<T, ConfigError> {
    Err(ConfigError::value("--lora-paths", value, why, remedy))
}

/// The folder of adapters that requests may name. It must exist.
pub(super) fn folder(args: &ServeArgs) -> Result<Option<std::path::PathBuf>, ConfigError> {
    let folder = args.lora.lora_dir.clone();
    match folder.as_ref().filter(|folder| !folder.is_dir()) {
        None => Ok(folder),
        Some(missing) => Err(ConfigError::value(
            "--lora-dir",
            missing.display(),
            "there is no such folder",
            "Name one whose folders hold adapters, or leave it out",
        )),
    }
}
