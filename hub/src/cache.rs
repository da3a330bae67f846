//! The cache on disk, laid out as every program of the hub finds it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::answer::Listed;
use crate::name::is_hex;
use crate::plan::lacking;
use crate::{HubError, Kind, Name, Revision};

/// A model's part of the cache.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    folder: PathBuf,
    locks: PathBuf,
}

impl Repository {
    pub(crate) fn new(cache: &Path, name: &Name) -> Self {
        Self {
            folder: cache.join(name.folder()),
            locks: cache.join(".locks").join(name.folder()),
        }
    }

    /// Where the content of a file lies, by its hash.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// The folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    fn reference(&self, revision: &Revision) -> PathBuf {
        self.folder.join("refs").join(revision.as_str())
    }

    /// Makes the folders that files are put into.
    pub(crate) fn create(&self, commit: &str) -> Result<(), HubError> {
        for folder in [
            self.folder.join("blobs"),
            self.snapshot(commit),
            self.locks.clone(),
        ] {
            fs::create_dir_all(&folder).map_err(HubError::cache(&folder))?;
        }
        Ok(())
    }

    /// Whether a commit's file is there as a server would read it, as large as it should be.
    pub(crate) fn has(&self, commit: &str, listed: &Listed) -> bool {
        let length = self.length(commit, &listed.file);
        length.is_ok_and(|length| length == listed.size)
    }

    fn length(&self, commit: &str, file: &str) -> io::Result<u64> {
        let file = lockstep_files::open(&self.snapshot(commit), file)?;
        Ok(file.metadata()?.len())
    }

    /// Whether a commit's file, which was just put there, can be read.
    pub(crate) fn expect(&self, commit: &str, listed: &Listed) -> Result<(), HubError> {
        let length = self.length(commit, &listed.file);
        length.map(drop).map_err(|error| HubError::Unreadable {
            path: self.snapshot(commit).join(&listed.file),
            repository: self.folder.clone(),
            why: error.to_string(),
        })
    }

    /// Makes a file that is among the blobs one of a commit's.
    pub(crate) fn link(&self, commit: &str, listed: &Listed) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(&listed.file);
        let target = Path::new("../../blobs").join(&listed.etag);
        replace(&link, |beside| symlink(&target, beside))
    }

    /// Notes which commit a revision is.
    pub(crate) fn refer(&self, revision: &Revision, commit: &str) -> Result<(), HubError> {
        let path = self.reference(revision);
        if revision.is_commit() || fs::read_to_string(&path).is_ok_and(|text| text == commit) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        replace(&path, |beside| fs::write(beside, commit))
    }

    /// The commit that a revision was when the hub was asked last.
    pub(crate) fn commit(&self, revision: &Revision) -> Option<String> {
        let commit = match revision.is_commit() {
            true => revision.as_str().to_owned(),
            false => fs::read_to_string(self.reference(revision)).ok()?,
        };
        let commit = commit.trim().to_owned();
        is_hex(&commit, 40).then_some(commit)
    }

    /// Waits until no other program loads this blob; `waiting` is called before it does.
    pub(crate) fn lock(&self, etag: &str, waiting: impl Fn()) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        let failed = |source| HubError::cache(&path)(source);
        loop {
            let open = OpenOptions::new().create(true).append(true).open(&path);
            let file = open.map_err(failed)?;
            if file.try_lock().is_err() {
                waiting();
                file.lock().map_err(failed)?;
            }
            // Some programs remove the file as they unlock it; then others have no part in it.
            if file.metadata().is_ok_and(|metadata| metadata.nlink() > 0) {
                return Ok(file);
            }
        }
    }

    /// Free bytes where blobs are written.
    pub(crate) fn free(&self) -> Result<u64, HubError> {
        let folder = self.folder.join("blobs");
        let stat = rustix::fs::statvfs(&folder).map_err(io::Error::from);
        let stat = stat.map_err(HubError::cache(&folder))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

pub(crate) fn is_file_of(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

/// Puts what `make` makes at `path`, whole or not at all.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), HubError> {
    // Nobody else's name, of this program neither.
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.{number}.tmp", std::process::id()));
    let beside = PathBuf::from(beside);
    let made = match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => make(&beside).and_then(|()| fs::rename(&beside, path)),
    };
    made.map_err(HubError::cache(path))
}

/// One version of a model in the cache.
#[derive(Debug)]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Branches and tags that were this commit when the hub was asked last.
    pub revisions: Vec<String>,
    /// Bytes of its files.
    pub size: u64,
    /// What it lacks of what a server reads; its tokenizer does not count.
    pub lacks: Vec<String>,
}

/// A model in the cache.
#[derive(Debug)]
pub struct Cached {
    /// Its name.
    pub name: Name,
    /// Its versions.
    pub snapshots: Vec<Snapshot>,
    /// Bytes that it takes on the disk, of files that have come in part too.
    pub bytes: u64,
}

impl Cached {
    /// All models of a cache, by name.
    ///
    /// # Errors
    /// Where the cache is there and can't be read.
    pub fn all(cache: &Path) -> Result<Vec<Self>, HubError> {
        let mut all = Vec::new();
        for folder in names_in(cache).map_err(HubError::cache(cache))? {
            let Some(name) = Name::of_folder(&folder) else {
                continue;
            };
            let folder = cache.join(&folder);
            let snapshots = snapshots(&folder).map_err(HubError::cache(&folder))?;
            let bytes = bytes_in(&folder.join("blobs")).map_err(HubError::cache(&folder))?;
            all.push(Self {
                name,
                snapshots,
                bytes,
            });
        }
        Ok(all)
    }
}

fn snapshots(repository: &Path) -> io::Result<Vec<Snapshot>> {
    let mut revisions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let refs = repository.join("refs");
    collect_refs(&refs, "", &mut revisions)?;
    let folder = repository.join("snapshots");
    let commits = names_in(&folder)?.into_iter();
    let commits = commits.filter(|name| is_hex(name, 40));
    let mut found = Vec::new();
    for commit in commits {
        let folder = folder.join(&commit);
        found.push(Snapshot {
            revisions: revisions.remove(&commit).unwrap_or_default(),
            lacks: lacking(&folder, Kind::Draft),
            size: bytes_in(&folder)?,
            commit,
            folder,
        });
    }
    Ok(found)
}

/// Bytes of a folder's files. A link to a blob that is no more has none.
fn bytes_in(folder: &Path) -> io::Result<u64> {
    let names = names_in(folder)?.into_iter();
    let size = |name| fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    Ok(names.map(size).sum())
}

/// Names of revisions may have slashes: folders in `refs`.
fn collect_refs(
    folder: &Path,
    prefix: &str,
    into: &mut BTreeMap<String, Vec<String>>,
) -> io::Result<()> {
    for name in names_in(folder)? {
        let path = folder.join(&name);
        if path.is_dir() {
            collect_refs(&path, &format!("{prefix}{name}/"), into)?;
        } else if let Ok(commit) = fs::read_to_string(&path) {
            let names = into.entry(commit.trim().to_owned()).or_default();
            names.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

/// What lies in a folder, sorted; nothing where there is none.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}
