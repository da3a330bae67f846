//! Loads a model: from its name to a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockstep_files::shown;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::answer::{self, Listed, Listing};
use crate::cache::{Repository, is_file_of};
use crate::client::Client;
use crate::download::Loading;
use crate::part::left;
use crate::plan::{self, Wanted};
use crate::progress::{Event, Told, plainly};
use crate::stop::unless_stopped;
use crate::tries::Asked;
use crate::waiting::Waiting;
use crate::{HubError, Patience, Settings};

/// Files that are loaded at once.
const AT_ONCE: usize = 8;

/// Longest wait for running tasks after a signal to end.
const LONGEST_END: Duration = Duration::from_secs(1);

/// Bytes to leave free on the disk: a full disk harms other programs.
const SPARE: u64 = 64 << 20;

/// The hub, and the cache of files loaded from it.
pub struct Hub {
    settings: Settings,
    told: Told,
}

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The folder of the model's files.
    pub folder: PathBuf,
    /// The model's version.
    pub commit: String,
    /// Bytes that this call has loaded.
    pub loaded: u64,
}

impl Hub {
    /// A hub with these settings; `told` gets all events.
    pub fn new(settings: Settings, told: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self {
            settings,
            told: plainly(told),
        }
    }

    /// Returns the folder of a model, and loads the files that the cache lacks from the
    /// model's repository on the hub. `check` gets a folder with `config.json` before
    /// weights are loaded; its error says why the model can't be served. If the hub can't be
    /// reached, or refuses, the version that was there last will do. The hub is not asked
    /// for a commit in the cache.
    ///
    /// # Errors
    /// [`HubError`].
    pub fn fetch(
        &self,
        wanted: &Wanted,
        check: &dyn Fn(&Path) -> Result<(), String>,
    ) -> Result<Fetched, HubError> {
        let cached = self.cached(wanted);
        if let Some(variable) = self.settings.offline {
            return cached.map_err(|lacks| HubError::Offline {
                name: wanted.name.clone(),
                revision: wanted.revision.clone(),
                cache: self.settings.cache.clone(),
                lacks,
                variable,
            });
        }
        match cached.clone() {
            // A commit never changes.
            Ok(fetched)
                if wanted.revision.is_commit()
                    && plan::is_described(&fetched.folder, wanted.kind) =>
            {
                checked(wanted, &fetched.folder, check)?;
                return Ok(fetched);
            }
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(AT_ONCE.min(4))
            // A peer that floods a connection keeps its thread busy: timers run all the
            // same.
            .event_interval(1)
            .thread_name("hub")
            .enable_all()
            .build()?;
        let load = self.load(wanted, check, cached.is_ok());
        let loaded = runtime.block_on(unless_stopped(load));
        match &loaded {
            // Tasks get the time to put their parts where the next start finds them.
            Err(HubError::Stopped(_)) => runtime.shutdown_timeout(LONGEST_END),
            // Tasks that still wait for another program's lock are not waited for.
            _ => runtime.shutdown_background(),
        }
        match (loaded, cached) {
            (Err(error), Ok(fetched)) if error.is_borne() => {
                let commit = fetched.commit.get(..12).unwrap_or_default();
                let name = &wanted.name;
                let text = format!("Note: {error} Until then {name} is as it was: {commit}.");
                (self.told)(Event::Note(&text));
                Ok(fetched)
            }
            (result, _) => result,
        }
    }

    /// The model in the cache, or the files that it lacks.
    fn cached(&self, wanted: &Wanted) -> Result<Fetched, String> {
        let repository = Repository::new(&self.settings.cache, &wanted.name);
        let commit = repository.commit(&wanted.revision);
        let commit = commit.ok_or("the whole model")?;
        let folder = repository.snapshot(&commit);
        let lacks = plan::lacking(&folder, wanted.kind);
        match lacks.is_empty() {
            false => Err(lacks.join(", ")),
            true => Ok(Fetched {
                folder,
                commit,
                loaded: 0,
            }),
        }
    }

    async fn load(
        &self,
        wanted: &Wanted,
        check: &dyn Fn(&Path) -> Result<(), String>,
        is_cached: bool,
    ) -> Result<Fetched, HubError> {
        let settings = &self.settings;
        let client = Client::new(settings)?;
        let asked = Asked::new(&wanted.name, &wanted.revision, settings, &client);
        // A model in the cache can do instead, so the wait is shorter.
        let patience = match is_cached {
            true => settings.patience.brief(),
            false => settings.patience,
        };
        let waiting = Waiting::new(&asked, &self.told, patience);
        let listing = self.list(&client, &asked, &waiting, patience).await?;
        let commit = listing.commit.clone();
        let descriptions = plan::descriptions(wanted, &listing)?;
        let repository = Repository::new(&settings.cache, &wanted.name);
        let folder = repository.snapshot(&commit);
        let loading = Arc::new(Loading {
            client,
            settings: settings.clone(),
            asked: asked.clone(),
            repository: repository.clone(),
            commit: commit.clone(),
            told: self.told.clone(),
            without_locks: Arc::new(AtomicBool::new(false)),
        });
        let few = missing(&repository, &commit, &descriptions);
        self.make_room(wanted, &loading, &few)?;
        // A refusal, of a gated or an unknown model, stops before more is asked for.
        let (config, others) = descriptions.split_at(1);
        for (what, files) in [(plan::CONFIG, config), ("the small files", others)] {
            let described = Arc::new(loading.with(waiting.for_a_file()));
            waiting.until_there(what, all(&described, files)).await?;
        }
        checked(wanted, &folder, check)?;
        let weights = plan::weights(&folder, &listing).map_err(|why| asked.wrong(why))?;
        let many = missing(&repository, &commit, &weights);
        self.make_room(wanted, &loading, &many)?;
        if !many.is_empty() {
            let (name, endpoint) = (&wanted.name, &settings.endpoint);
            let what = sizes(&many);
            let text = format!("Loading {name} ({commit:.12}) from {endpoint}: {what}.");
            (self.told)(Event::Note(&text));
        }
        all(&loading, &weights).await?;
        let loaded = few.iter().chain(&many).map(|listed| listed.size).sum();
        match repository.refer(&wanted.revision, &commit) {
            // The cache can only be read, but has all files.
            Err(error) if loaded == 0 => {
                let name = &wanted.name;
                let text = format!("Note: that {name} is at {commit:.12} now is not kept: {error}");
                (self.told)(Event::Note(&text));
            }
            referred => referred?,
        }
        Ok(Fetched {
            folder,
            commit,
            loaded,
        })
    }

    /// The files of a model at the wanted commit.
    async fn list(
        &self,
        client: &Client,
        asked: &Asked,
        waiting: &Waiting,
        patience: Patience,
    ) -> Result<Listing, HubError> {
        let client = client.with(patience);
        let listing = answer::ask(&client, patience, &self.settings, asked, &self.told);
        let what = "the hub's list of files";
        let listing = waiting.until_there(what, listing).await?;
        let (revision, commit) = (&asked.revision, &listing.commit);
        if revision.is_commit() && revision.as_str() != commit {
            let why = format!("asked for commit {revision}, it answers {commit}");
            return Err(asked.wrong(why));
        }
        Ok(listing)
    }

    /// Makes the folders for missing files; refuses to fill the disk.
    fn make_room(
        &self,
        wanted: &Wanted,
        loading: &Loading,
        files: &[Listed],
    ) -> Result<(), HubError> {
        // For a model that is complete nothing is written.
        if files.is_empty() {
            return Ok(());
        }
        let repository = &loading.repository;
        repository.create(&loading.commit)?;
        let there = |listed: &Listed| {
            let blob = repository.blob(&listed.etag);
            match is_file_of(&blob, listed.size) {
                true => listed.size,
                false => left(&blob).metadata().map_or(0, |part| part.len()),
            }
        };
        let rest = |listed: &Listed| listed.size.saturating_sub(there(listed));
        let needed: u64 = files.iter().map(rest).fold(0, u64::saturating_add);
        let free = repository.free()?;
        match needed == 0 || needed.saturating_add(SPARE) <= free {
            true => Ok(()),
            false => Err(HubError::Space {
                name: wanted.name.clone(),
                needed,
                free,
                cache: self.settings.cache.clone(),
            }),
        }
    }
}

/// Refuses a model that can't be served.
fn checked(
    wanted: &Wanted,
    folder: &Path,
    check: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<(), HubError> {
    check(folder).map_err(|why| HubError::Unsupported {
        name: wanted.name.clone(),
        why: shown(&why),
    })
}

/// The number of files and their size, as text.
fn sizes(files: &[Listed]) -> String {
    let bytes: u64 = files.iter().map(|listed| listed.size).sum();
    let gib = bytes as f64 / f64::from(1 << 30);
    match files.len() {
        1 => format!("1 file of weights, {gib:.2} GiB"),
        several => format!("{several} files of weights, {gib:.2} GiB"),
    }
}

/// Files that a snapshot lacks.
fn missing(repository: &Repository, commit: &str, files: &[Listed]) -> Vec<Listed> {
    let lacks = |listed: &&Listed| !repository.has(commit, listed);
    files.iter().filter(lacks).cloned().collect()
}

/// Loads files, several at once. The first error ends all downloads.
async fn all(loading: &Arc<Loading>, files: &[Listed]) -> Result<(), HubError> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for listed in files.iter().cloned() {
        let (loading, places) = (loading.clone(), places.clone());
        tasks.spawn(async move {
            let _place = places.acquire_owned().await;
            loading.file(listed).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        if let Err(error) = done.map_err(std::io::Error::other)? {
            // Tasks get the time to put their parts where the next start finds them.
            tasks.shutdown().await;
            return Err(error);
        }
    }
    Ok(())
}
