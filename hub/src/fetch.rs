//! A model, from its name to a folder.

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

/// Files that come at once.
const AT_ONCE: usize = 8;

/// Who asks a program to end waits no longer for files that are loaded.
const LONGEST_END: Duration = Duration::from_secs(1);

/// Left free on the disk: what fills up harms others.
const SPARE: u64 = 64 << 20;

/// The hub, and the cache of what came from it.
pub struct Hub {
    settings: Settings,
    told: Told,
}

/// A model that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The folder of its files.
    pub folder: PathBuf,
    /// Its version.
    pub commit: String,
    /// Bytes that were loaded for it now.
    pub loaded: u64,
}

impl Hub {
    /// With settings, and somebody who is told what happens.
    pub fn new(settings: Settings, told: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self {
            settings,
            told: plainly(told),
        }
    }

    /// The folder of a model: what its repository on the hub has and the cache has not is
    /// loaded. `check` looks at a folder with `config.json` before weights come, and says
    /// in words what can't be served. Where the hub can't be reached, or refuses, the version
    /// that was there last will do; of a commit that is there, nobody is asked.
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
            // Who floods a connection keeps its thread busy: time goes on all the same.
            .event_interval(1)
            .thread_name("hub")
            .enable_all()
            .build()?;
        let load = self.load(wanted, check, cached.is_ok());
        let loaded = runtime.block_on(unless_stopped(load));
        match &loaded {
            // What has come is put where the next one finds it.
            Err(HubError::Stopped(_)) => runtime.shutdown_timeout(LONGEST_END),
            // Whatever still waits for another program's lock is not waited for.
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

    /// What is in the cache of a model, or what it lacks.
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
        // Not waited for as long where the cache may do instead.
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
        // A refusal, a gate's or an unknown model's, stops before more is asked for.
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
            // A cache that can only be read, and has all.
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

    /// The files of a model at the commit that is asked for.
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

    /// Makes the folders for files that are missing; refuses to fill the disk.
    fn make_room(
        &self,
        wanted: &Wanted,
        loading: &Loading,
        files: &[Listed],
    ) -> Result<(), HubError> {
        // Of a model that is there, nothing is written.
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

/// Refuses what is not served.
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

/// How many files, and how large.
fn sizes(files: &[Listed]) -> String {
    let bytes: u64 = files.iter().map(|listed| listed.size).sum();
    let gib = bytes as f64 / f64::from(1 << 30);
    match files.len() {
        1 => format!("1 file of weights, {gib:.2} GiB"),
        several => format!("{several} files of weights, {gib:.2} GiB"),
    }
}

/// Files that a snapshot does not have yet.
fn missing(repository: &Repository, commit: &str, files: &[Listed]) -> Vec<Listed> {
    let lacks = |listed: &&Listed| !repository.has(commit, listed);
    files.iter().filter(lacks).cloned().collect()
}

/// Loads files, several at once; the first error ends all.
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
            // What has come is put where the next one finds it.
            tasks.shutdown().await;
            return Err(error);
        }
    }
    Ok(())
}
