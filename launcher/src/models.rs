//! `lockstep pull` and `lockstep models`: models of the hub, before they are served.

use std::path::Path;

use lockstep_hub::{
    Cached, Hub, HubError, Kind, ModelRequest, Name, Revision, Settings, Snapshot, bars, check,
};
use lockstep_process::exit;
use lockstep_types::ConfigError;

use crate::console;
use crate::error::LaunchError;

/// What to load.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PullArgs {
    /// Models by their names: OWNER/NAME.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Branch, tag or commit of each [default: main].
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// They are draft heads or models, not to be served themselves.
    ///
    /// A head's config.json looks like a whole model's, and it needs no
    /// tokenizer; so nothing is checked before its weights are loaded.
    #[arg(long)]
    draft: bool,
}

/// Loads the files that the cache lacks, and prints the folders.
pub(crate) fn pull(args: &PullArgs) -> Result<u8, LaunchError> {
    let revision = args.revision.as_deref().map(Revision::parse).transpose();
    let revision = revision.map_err(HubError::from)?;
    let revision = revision.unwrap_or_default();
    let names = args.names.iter().map(|name| {
        let parsed = Name::parse(name);
        let why =
            format!("{name} is no name of a model. Give OWNER/NAME, as its page on the hub has it");
        parsed.ok_or(LaunchError::Config(ConfigError::Usage(why)))
    });
    let names: Vec<_> = names.collect::<Result<_, _>>()?;
    let hub = Hub::new(Settings::from_env()?, bars());
    for name in names {
        let wanted = ModelRequest {
            name,
            revision: revision.clone(),
            kind: if args.draft {
                Kind::Draft
            } else {
                Kind::Target
            },
        };
        let fetched = match args.draft {
            true => hub.fetch(&wanted, &|_| Ok(()))?,
            false => hub.fetch(&wanted, &check).map_err(hint_at_draft)?,
        };
        console::print(&fetched.folder.display().to_string())?;
    }
    Ok(exit::OK)
}

/// Adds a hint for errors of draft heads, which are refused as models: `--draft` has to say
/// that a head is meant.
fn hint_at_draft(error: HubError) -> HubError {
    if matches!(error, HubError::Unsupported { .. } | HubError::Lacks { .. }) {
        console::print_note("Note: a head that drafts for another model is loaded with --draft.");
    }
    error
}

/// Prints the models in the cache.
pub(crate) fn list() -> Result<u8, LaunchError> {
    let settings = Settings::from_env()?;
    let models = Cached::all(&settings.cache)?;
    console::print(&table(&models, &settings.cache))?;
    Ok(exit::OK)
}

/// One line for each version of each model, and their sum.
fn table(models: &[Cached], cache: &Path) -> String {
    let mut rows = vec![["MODEL", "REVISION", "SIZE", "SERVED"].map(str::to_owned)];
    for model in models {
        for snapshot in &model.snapshots {
            let revision = match snapshot.revisions.is_empty() {
                true => format!("{:.12}", snapshot.commit),
                false => format!(
                    "{} ({:.12})",
                    snapshot.revisions.join(", "),
                    snapshot.commit
                ),
            };
            let name = model.name.to_string();
            let state = state(&model.name, snapshot);
            rows.push([name, revision, size(snapshot.size), state]);
        }
    }
    let width = |column: usize| {
        let widths = rows
            .iter()
            .filter_map(|row| row.get(column).map(String::len));
        widths.max().unwrap_or_default()
    };
    let (name, revision, bytes) = (width(0), width(1), width(2));
    let line = |[a, b, c, d]: &[String; 4]| format!("{a:name$}  {b:revision$}  {c:>bytes$}  {d}\n");
    let on_disk: u64 = models.iter().map(|model| model.bytes).sum();
    let sum = format!("{} in {}", size(on_disk), cache.display());
    match models.is_empty() {
        true => format!(
            "No models in {}. `lockstep pull OWNER/NAME` loads one.",
            cache.display()
        ),
        false => rows.iter().map(line).collect::<String>() + &sum,
    }
}

fn size(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Text that says whether the model can be served, or why not.
fn state(name: &Name, snapshot: &Snapshot) -> String {
    if !snapshot.lacks.is_empty() {
        let lacks = snapshot.lacks.join(", ");
        return format!("no: {lacks} missing; lockstep pull {name} loads it");
    }
    if let Some(algorithm) = lockstep_model_folder::draft::head_of(&snapshot.folder) {
        return format!("as a draft, by {algorithm}");
    }
    match check(&snapshot.folder) {
        Err(why) => format!("no: {why}"),
        Ok(()) if !snapshot.folder.join("tokenizer.json").exists() => {
            "as a draft: it has no tokenizer.json".to_owned()
        }
        Ok(()) => "yes".to_owned(),
    }
}
