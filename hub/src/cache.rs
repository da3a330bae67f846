//! The cache on disk, in the layout of all programs of the hub.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::answer::ListedFile;
use crate::lock::{Lock, Wait};
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

    /// Returns true if any file of the model has ever been loaded.
    pub(crate) fn is_begun(&self) -> bool {
        self.folder.is_dir()
    }

    /// Path of a file's content, by its hash.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// The folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    fn reference(&self, revision: &Revision) -> PathBuf {
        self.folder.join(REFS).join(revision.as_str())
    }

    /// Makes the folders for files.
    pub(crate) fn create(&self, commit: &str) -> Result<(), HubError> {
        for folder in [self.folder.join("blobs"), self.snapshot(commit)] {
            fs::create_dir_all(&folder).map_err(HubError::cache(&folder))?;
        }
        Ok(())
    }

    /// Returns true if a commit's file is there in a form that a server would read, with the
    /// right size.
    pub(crate) fn has(&self, commit: &str, listed: &ListedFile) -> bool {
        let length = self.length(commit, &listed.file);
        length.is_ok_and(|length| length == listed.size)
    }

    fn length(&self, commit: &str, file: &str) -> io::Result<u64> {
        let file = lockstep_files::open(&self.snapshot(commit), file)?;
        Ok(file.metadata()?.len())
    }

    /// Links a file among the blobs into a commit's folder.
    pub(crate) fn link(&self, commit: &str, listed: &ListedFile) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(&listed.file);
        let target = Path::new("../../blobs").join(&listed.etag);
        let is_there = || self.has(commit, listed);
        replace(&link, |beside| symlink(&target, beside), is_there)
    }

    /// Checks that a commit's file, which was just put there, can be read.
    pub(crate) fn expect(&self, commit: &str, listed: &ListedFile) -> Result<(), HubError> {
        let length = self.length(commit, &listed.file);
        length.map(drop).map_err(|error| HubError::Unreadable {
            path: self.snapshot(commit).join(&listed.file),
            repository: self.folder.clone(),
            why: error.to_string(),
        })
    }

    /// Notes the commit of a revision.
    pub(crate) fn refer(&self, revision: &Revision, commit: &str) -> Result<(), HubError> {
        let path = self.reference(revision);
        let is_there = || self.commit(revision).as_deref() == Some(commit);
        if revision.is_commit() || is_there() {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let write = |beside: &Path| fs::File::create_new(beside)?.write_all(commit.as_bytes());
        replace(&path, write, is_there)
    }

    /// The commit of a revision when the hub was asked last.
    pub(crate) fn commit(&self, revision: &Revision) -> Option<String> {
        let commit = match revision.is_commit() {
            true => revision.as_str().to_owned(),
            false => reference(&self.folder.join(REFS), revision.as_str())?,
        };
        is_hex(&commit, 40).then_some(commit)
    }

    /// Waits until no other program loads the blob of a file. Gives up if `came`, a count of
    /// bytes, has not changed for `stall`. `on_wait` gets a word about each wait.
    pub(crate) async fn lock(
        &self,
        listed: &ListedFile,
        stall: Duration,
        came: impl Fn() -> u64 + Clone + Send + 'static,
        on_wait: &(dyn Fn(Wait<'_>) + Sync),
    ) -> Result<Lock, HubError> {
        let locks = &self.locks;
        fs::create_dir_all(locks).map_err(HubError::cache(locks))?;
        let path = locks.join(format!("{}.lock", listed.etag));
        let taken = Lock::take(path.clone(), stall, came, on_wait).await;
        taken
            .map_err(HubError::cache(&path))?
            .ok_or(HubError::Locked {
                lock: path,
                file: listed.file.clone(),
                limit: stall,
            })
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

/// Puts a file that `make` makes under a temporary name at `path`, whole or not at all. If
/// that fails, a file that another program has put there is as good.
fn replace<T>(
    path: &Path,
    make: impl FnMut(&Path) -> io::Result<T>,
    is_there: impl FnOnce() -> bool,
) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut names = tempfile::Builder::new();
    let names = names.prefix(".lockstep-").suffix(".tmp").rand_bytes(12);
    let made = names.make_in(folder, make);
    let put = made.and_then(|made| Ok(made.into_temp_path().persist(path)?));
    match put {
        Err(_) if is_there() => Ok(()),
        put => put.map_err(HubError::cache(path)),
    }
}

/// One version of a model in the cache.
#[derive(Debug)]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// The version's folder.
    pub folder: PathBuf,
    /// Branches and tags that named this commit when the hub was asked last.
    pub revisions: Vec<String>,
    /// Bytes of the version's files.
    pub size: u64,
    /// Files that a server reads and the version lacks. The tokenizer does not count.
    pub lacks: Vec<String>,
}

/// A model in the cache.
#[derive(Debug)]
pub struct Cached {
    /// The model's name.
    pub name: Name,
    /// The model's versions.
    pub snapshots: Vec<Snapshot>,
    /// Bytes of the model on the disk, including files that have come in part.
    pub bytes: u64,
}

impl Cached {
    /// All models of a cache, by name.
    ///
    /// # Errors
    /// Fails when the cache exists and can't be read.
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
    collect_refs(&repository.join(REFS), "", &mut revisions)?;
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

/// Bytes of a folder's files. A link to a missing blob counts as none.
fn bytes_in(folder: &Path) -> io::Result<u64> {
    let names = names_in(folder)?.into_iter();
    let size = |name| fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    Ok(names.map(size).fold(0, u64::saturating_add))
}

/// Folder of a repository with the commits of its revisions.
const REFS: &str = "refs";

/// The commit in a file of `refs`; `None` if the file is a link or another kind.
fn reference(refs: &Path, name: &str) -> Option<String> {
    // Room for an end of line.
    const LONGEST: u64 = 64;
    let text = lockstep_files::read_text(refs, name, LONGEST).ok()??;
    Some(text.trim().to_owned())
}

/// Collects the revisions below `refs`, by commit. Their names may have slashes, which are
/// folders there. Links, which could lead in circles, are no folders.
fn collect_refs(
    refs: &Path,
    prefix: &str,
    into: &mut BTreeMap<String, Vec<String>>,
) -> io::Result<()> {
    // A reference that is being written has a name that no revision has.
    for name in names_in(&refs.join(prefix))?
        .iter()
        .filter(|name| !name.starts_with('.'))
    {
        let name = format!("{prefix}{name}");
        // Other names can neither be given nor shown.
        if Revision::parse(&name).is_err() {
            continue;
        }
        if refs.join(&name).symlink_metadata()?.is_dir() {
            collect_refs(refs, &format!("{name}/"), into)?;
        } else if let Some(commit) = reference(refs, &name) {
            into.entry(commit).or_default().push(name);
        }
    }
    Ok(())
}

/// Names in a folder, sorted; none if there is no folder.
pub(crate) fn names_in(folder: &Path) -> io::Result<Vec<String>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_has_put_there_will_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("main");
        let other = |beside: &Path| {
            fs::write(beside, "half")?;
            // Acts as a program in another container with the same process number.
            for name in names_in(folder.path())? {
                fs::remove_file(folder.path().join(name))?;
            }
            fs::write(&path, "commit")
        };
        let is_there = || fs::read_to_string(&path).is_ok_and(|text| text == "commit");
        replace(&path, other, is_there).expect("it is there");
        let error = replace(&folder.path().join("else"), other, || false);
        assert!(matches!(error, Err(HubError::Cache { .. })));
        assert_eq!(names_in(folder.path()).expect("listed"), ["main"]);
    }
}
