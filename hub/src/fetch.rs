//! Loads a model: from its name to a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockstep_files::shown;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::answer::{self, ListedFile, Listing};
use crate::cache::{Repository, is_file_of};
use crate::client::Client;
use crate::deadline::DescriptionDeadline;
use crate::download::Download;
use crate::part::left;
use crate::plan::{self, ModelRequest};
use crate::progress::{Event, EventSink, plainly};
use crate::retries::RequestContext;
use crate::stop::unless_stopped;
use crate::{HubError, Settings, TransferLimits};

/// Files that are loaded at once.
const AT_ONCE: usize = 8;

/// Longest wait for running tasks after a signal to end.
const LONGEST_END: Duration = Duration::from_secs(1);

/// Bytes to leave free on the disk: a full disk harms other programs.
const SPARE: u64 = 64 << 20;

/// The hub, and the cache of files loaded from it.
pub struct Hub {
    settings: Settings,
    events: EventSink,
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
    /// A hub with these settings; `events` gets all events.
    pub fn new(settings: Settings, events: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self {
            settings,
            events: plainly(events),
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
        wanted: &ModelRequest,
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
                (self.events)(Event::Note(&text));
                Ok(fetched)
            }
            (result, _) => result,
        }
    }

    /// The model in the cache, or the files that it lacks.
    fn cached(&self, wanted: &ModelRequest) -> Result<Fetched, String> {
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
        wanted: &ModelRequest,
        check: &dyn Fn(&Path) -> Result<(), String>,
        is_cached: bool,
    ) -> Result<Fetched, HubError> {
        let settings = &self.settings;
        let client = Client::new(settings)?;
        let context = RequestContext::new(&wanted.name, &wanted.revision, settings, &client);
        // A model in the cache can do instead, so the wait is shorter.
        let limits = match is_cached {
            true => settings.limits.brief(),
            false => settings.limits,
        };
        let deadline = DescriptionDeadline::new(&context, &self.events, limits);
        let listing = self.list(&client, &context, &deadline, limits).await?;
        let commit = listing.commit.clone();
        let descriptions = plan::descriptions(wanted, &listing)?;
        let repository = Repository::new(&settings.cache, &wanted.name);
        let folder = repository.snapshot(&commit);
        let download = Arc::new(Download {
            client,
            settings: settings.clone(),
            context: context.clone(),
            repository: repository.clone(),
            commit: commit.clone(),
            events: self.events.clone(),
            without_locks: Arc::new(AtomicBool::new(false)),
        });
        let few = missing(&repository, &commit, &descriptions);
        self.make_room(wanted, &download, &few)?;
        // A refusal, of a gated or an unknown model, stops before more is asked for.
        let (config, others) = descriptions.split_at(1);
        for (what, files) in [(plan::CONFIG, config), ("the small files", others)] {
            let described = Arc::new(download.with(deadline.for_a_file()));
            deadline.until_there(what, all(&described, files)).await?;
        }
        checked(wanted, &folder, check)?;
        let weights = plan::weights(&folder, &listing).map_err(|why| context.wrong(why))?;
        let many = missing(&repository, &commit, &weights);
        self.make_room(wanted, &download, &many)?;
        if !many.is_empty() {
            let (name, endpoint) = (&wanted.name, &settings.endpoint);
            let what = sizes(&many);
            let text = format!("Loading {name} ({commit:.12}) from {endpoint}: {what}.");
            (self.events)(Event::Note(&text));
        }
        all(&download, &weights).await?;
        let loaded = few.iter().chain(&many).map(|listed| listed.size).sum();
        match repository.refer(&wanted.revision, &commit) {
            // The cache can only be read, but has all files.
            Err(error) if loaded == 0 => {
                let name = &wanted.name;
                let text = format!("Note: that {name} is at {commit:.12} now is not kept: {error}");
                (self.events)(Event::Note(&text));
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
        context: &RequestContext,
        deadline: &DescriptionDeadline,
        limits: TransferLimits,
    ) -> Result<Listing, HubError> {
        let client = client.with(limits);
        let listing = answer::ask(&client, limits, &self.settings, context, &self.events);
        let what = "the hub's list of files";
        let listing = deadline.until_there(what, listing).await?;
        let (revision, commit) = (&context.revision, &listing.commit);
        if revision.is_commit() && revision.as_str() != commit {
            let why = format!("asked for commit {revision}, it answers {commit}");
            return Err(context.wrong(why));
        }
        Ok(listing)
    }

    /// Makes the folders for missing files; refuses to fill the disk.
    fn make_room(
        &self,
        wanted: &ModelRequest,
        download: &Download,
        files: &[ListedFile],
    ) -> Result<(), HubError> {
        // For a model that is complete nothing is written.
        if files.is_empty() {
            return Ok(());
        }
        let repository = &download.repository;
        repository.create(&download.commit)?;
        let there = |listed: &ListedFile| {
            let blob = repository.blob(&listed.etag);
            match is_file_of(&blob, listed.size) {
                true => listed.size,
                false => left(&blob).metadata().map_or(0, |part| part.len()),
            }
        };
        let rest = |listed: &ListedFile| listed.size.saturating_sub(there(listed));
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
    wanted: &ModelRequest,
    folder: &Path,
    check: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<(), HubError> {
    check(folder).map_err(|why| HubError::Unsupported {
        name: wanted.name.clone(),
        why: shown(&why),
    })
}

/// The number of files and their size, as text.
fn sizes(files: &[ListedFile]) -> String {
    let bytes: u64 = files.iter().map(|listed| listed.size).sum();
    let gib = bytes as f64 / f64::from(1 << 30);
    match files.len() {
        1 => format!("1 file of weights, {gib:.2} GiB"),
        several => format!("{several} files of weights, {gib:.2} GiB"),
    }
}

/// Files that a snapshot lacks.
fn missing(repository: &Repository, commit: &str, files: &[ListedFile]) -> Vec<ListedFile> {
    let lacks = |listed: &&ListedFile| !repository.has(commit, listed);
    files.iter().filter(lacks).cloned().collect()
}

/// Loads files, several at once. The first error ends all downloads.
async fn all(download: &Arc<Download>, files: &[ListedFile]) -> Result<(), HubError> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for listed in files.iter().cloned() {
        let (download, places) = (download.clone(), places.clone());
        tasks.spawn(async move {
            let _place = places.acquire_owned().await;
            download.file(listed).await
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
