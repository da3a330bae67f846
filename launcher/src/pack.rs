//! `lockstep pack`: fills a folder before a server starts, with packed weights for the
//! processor or with compiled kernels for GPUs.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use lockstep_config::ServeArgs;
use lockstep_config::args::ModelArgs;
use lockstep_process::exit;
use lockstep_tp_worker::worker::local::{LocalGroup, LocalOptions, OnProgress};
use lockstep_tp_worker::worker::{MaskPlace, WeightOrigin};
use lockstep_types::{Algorithms, ConfigError, DeviceKind};

use crate::console;
use crate::rank_args::RankArgs;
use crate::settings::Settings;

/// What to pack, and for how many ranks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PackArgs {
    #[command(flatten)]
    ranks: RankArgs,
    #[command(flatten)]
    model: ModelArgs,
}

/// Packs the weights that are not packed yet, and prints the files' names on stdout. For GPUs
/// compiles the kernels that are not compiled yet.
pub(crate) fn run(args: &PackArgs, algorithms: &Algorithms) -> anyhow::Result<u8> {
    if args.model.weight_cache.is_none() {
        let why = "no folder is named; give --weight-cache DIR";
        return Err(ConfigError::Usage(why.into()).into());
    }
    if !args.model.served_model_name.is_empty() || args.model.context_length.is_some() {
        let why = "--served-model-name and --context-length do not change packed weights; leave \
                   them to lockstep serve";
        return Err(ConfigError::Usage(why.into()).into());
    }
    let settings = Settings::prepare(&serve_args(args), algorithms, None)?;
    settings.print_notes();
    let (engine, node) = (&settings.file.engine, &settings.file.node);
    let bars = MultiProgress::new();
    let options = LocalOptions {
        weight_cache: node.weight_cache.clone(),
        progress: Some(progress(&bars, args.ranks.tp_size)),
        masks: Some(MaskPlace::Host),
        ..LocalOptions::default()
    };
    let group = LocalGroup::start(engine, &options)?;
    bars.clear()?;
    if engine.device.kind != DeviceKind::Cpu {
        let folder = node.weight_cache.as_deref().unwrap_or(Path::new(""));
        console::print(&kernels(&folder.join(lockstep_devices::KERNELS))?)?;
        return Ok(exit::OK);
    }
    for (rank, origin) in group.weight_origins().iter().enumerate() {
        console::print(&format!("rank {rank}: {}", outcome(origin)?))?;
    }
    Ok(exit::OK)
}

/// Options of a server that would read the files.
pub(crate) fn serve_args(args: &PackArgs) -> ServeArgs {
    let mut serve = ServeArgs::default();
    serve.model = args.model.clone();
    // Drafts are small and read without packing.
    serve.speculation.speculative_algorithm = Some("none".into());
    args.ranks.give_to(&mut serve);
    serve
}

/// Text about the kernels in `folder`.
fn kernels(folder: &Path) -> anyhow::Result<String> {
    kept(folder, lockstep_devices::kernels_not_kept())?;
    let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let (count, shown) = (files.count(), folder.display());
    Ok(format!(
        "{shown} has {count} files of compiled kernels; GPUs keep no packed weights"
    ))
}

/// Refuses a folder that did not take `missing` compiled kernels, whatever it holds from before.
fn kept(folder: &Path, missing: usize) -> anyhow::Result<()> {
    if missing == 0 {
        return Ok(());
    }
    bail!(
        "{} did not take {missing} files of compiled kernels: make it writable, with room for \
         them, or name another --weight-cache",
        folder.display()
    )
}

/// Text about a rank's file; the warnings as an error if there is none.
fn outcome(origin: &WeightOrigin) -> anyhow::Result<String> {
    let Some(file) = &origin.file else {
        bail!("{}", origin.warnings.join("; "));
    };
    for warning in &origin.warnings {
        console::print_note(&format!("Note: {warning}."));
    }
    let size = fs::metadata(file).with_context(|| file.display().to_string())?;
    let done = if origin.restored {
        "was there already"
    } else {
        "written"
    };
    let gib = size.len() as f64 / f64::from(1 << 30);
    Ok(format!("{} ({gib:.2} GiB) {done}", file.display()))
}

/// One bar per rank, on a terminal.
fn progress(bars: &MultiProgress, ranks: usize) -> OnProgress {
    let style = ProgressStyle::with_template("  {prefix:<10} {bar:32} {percent:>3}%  {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bars: Vec<_> = (0..ranks)
        .map(|rank| {
            let bar = bars.add(ProgressBar::new(0)).with_style(style.clone());
            bar.with_prefix(format!("rank {rank}"))
        })
        .collect();
    Arc::new(move |rank, at| {
        let Some(bar) = bars.get(rank) else { return };
        if bar.message() != at.phase.label() {
            bar.set_message(at.phase.label());
        }
        bar.set_length(at.total);
        bar.set_position(at.done);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of an older version may lie there.
    #[test]
    fn a_folder_that_did_not_take_everything_is_refused() {
        let folder = Path::new("kept/kernels");
        assert!(kept(folder, 0).is_ok());
        let error = kept(folder, 3).expect_err("three are missing").to_string();
        assert!(error.contains("kept/kernels did not take 3"), "{error}");
    }
}
