//! Options of adapters (LoRA).

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use lockstep_types::{NamedAdapter, adapter::check_adapter_name};

use super::positive;

const HEADING: &str = "Adapters";

/// Adapters that requests may name beside the model.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LoraArgs {
    /// Serve adapters (LoRA), which requests choose by name.
    ///
    /// --lora-paths loads some at the start, and --lora-dir allows others while the server
    /// runs. Needs ranks on processors.
    #[arg(long, env = "LOCKSTEP_ENABLE_LORA", value_name = "true|false",
          value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true,
          default_missing_value = "true", hide_possible_values = true, help_heading = HEADING)]
    pub enable_lora: Option<bool>,
    /// Adapters that are loaded at the start, each as NAME=FOLDER; implies --enable-lora.
    ///
    /// On several nodes each has the folders in the same places.
    #[arg(long, env = "LOCKSTEP_LORA_PATHS", value_name = "NAME=FOLDER", num_args = 1..,
          value_delimiter = ',', value_parser = named, alias = "lora-modules",
          help_heading = HEADING)]
    pub lora_paths: Vec<NamedAdapter>,
    /// Folder whose folders /v1/load_lora_adapter may name [default: none may be].
    ///
    /// Whoever may use that route may then load any adapter inside it; several nodes are
    /// each given it, in one place.
    #[arg(long, env = "LOCKSTEP_LORA_DIR", value_name = "DIR", help_heading = HEADING)]
    pub lora_dir: Option<PathBuf>,
    /// Adapters in memory at once, all of which a batch may have [default: 8].
    ///
    /// Memory for as many of --max-lora-rank is taken at the start. Another adapter of a name
    /// needs a place beside the first until the first one's requests have ended.
    #[arg(long, env = "LOCKSTEP_MAX_LORAS_PER_BATCH", value_name = "ADAPTERS",
          value_parser = places, alias = "max-loras", help_heading = HEADING)]
    pub max_loras_per_batch: Option<u16>,
    /// Largest rank of an adapter [default: 16].
    #[arg(long, env = "LOCKSTEP_MAX_LORA_RANK", value_name = "RANK", value_parser = rank,
          help_heading = HEADING)]
    pub max_lora_rank: Option<usize>,
}

/// Most adapters in memory.
const MOST_PLACES: u16 = 1024;
/// Largest rank that can be asked for, which is vLLM's.
const LARGEST_RANK: usize = 512;

fn places(text: &str) -> Result<u16, String> {
    let given = text.parse().ok();
    given
        .filter(|places| (1..=MOST_PLACES).contains(places))
        .ok_or_else(|| format!("must be a whole number, 1 to {MOST_PLACES}"))
}

fn rank(text: &str) -> Result<usize, String> {
    match positive(text)? {
        rank if rank <= LARGEST_RANK => Ok(rank),
        _ => Err(format!("must be at most {LARGEST_RANK}")),
    }
}

/// Parses `NAME=FOLDER`.
fn named(text: &str) -> Result<NamedAdapter, String> {
    let (name, path) = text
        .split_once('=')
        .ok_or("must be NAME=FOLDER, as in sql=adapters/sql")?;
    check_adapter_name(name).map_err(|rule| format!("the name before = {rule}"))?;
    if path.is_empty() {
        return Err("names no folder behind =".to_owned());
    }
    Ok(NamedAdapter {
        name: name.to_owned(),
        path: path.into(),
    })
}
