//! The hash of a checkpoint's bytes, remembered until its files change.

use std::{
    fs::File,
    io::{self, Read, Write},
    num::NonZero,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use blake3::{Hash, Hasher};
use lockstep_files::LARGEST_CONFIG;
use serde::{Deserialize, Serialize};

use super::{
    folder::Folder,
    layout::{PIECE, SEGMENT},
};
use crate::{LoadPhase, LoadProgress, checkpoint::source::Source};

/// Identity of a file at the time it was read. No program can set the time of its last
/// change, `changed`. So `changed` tells a rewritten file from an old one of equal size and
/// date.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    path: PathBuf,
    /// Number of the file system's device.
    device: u64,
    inode: u64,
    size: u64,
    /// Time when the content was last modified: seconds and nanoseconds.
    modified: (i64, i64),
    /// Time of the inode's last change (ctime): seconds and nanoseconds.
    changed: (i64, i64),
}

/// The remembered hash of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    stamp: Stamp,
    hash: String,
}

/// Time for which a file must be left alone before its hash is remembered. File times are as
/// coarse as the system's clock tick, so a second change within one tick would not show.
const SETTLED: Duration = Duration::from_secs(1);

/// Returns the current stamp of every weight file.
pub(super) fn stamps(source: &dyn Source) -> io::Result<Vec<Stamp>> {
    let files = source.files().into_iter();
    files.map(|(path, file)| Stamp::of(path, file)).collect()
}

/// Returns the hash of all weight files, and the reason if it could not be remembered.
pub(super) fn hash(
    source: &dyn Source,
    folder: &Folder,
    progress: &mut dyn FnMut(LoadProgress),
) -> io::Result<(Hash, Option<String>)> {
    let (mut all, mut warning) = (Hasher::new(), None);
    let mut counter = Counter {
        done: 0,
        total: source.files().iter().map(|(_, file)| length(file)).sum(),
        progress,
    };
    for (path, file) in source.files() {
        let stamp = Stamp::of(path, file)?;
        let name = name(&stamp.path);
        let hash = if let Some(hash) = seen(folder, &name, &stamp) {
            counter.done += stamp.size;
            hash
        } else {
            let begun = SystemTime::now();
            let hash = read(file, &mut counter)?;
            if stamp.settled(begun) && Stamp::of(path, file)? == stamp {
                let hash = hash.to_string();
                let kept = remember(folder, &name, &Seen { stamp, hash });
                warning = warning.or(kept.err().map(|error| error.to_string()));
            }
            hash
        };
        all.update(hash.as_bytes());
    }
    Ok((all.finalize(), warning))
}

/// Name under which a file's hash is remembered.
fn name(path: &Path) -> String {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    format!("{}.checkpoint", &hash.to_hex()[..24])
}

impl Stamp {
    fn of(path: &Path, file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            path: path.canonicalize()?,
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Returns true if the file's last change was more than [`SETTLED`] before `begun`.
    fn settled(&self, begun: SystemTime) -> bool {
        let begun = begun.duration_since(SystemTime::UNIX_EPOCH).ok();
        begun
            .and_then(|begun| begun.checked_sub(SETTLED))
            .and_then(|at| Some((i64::try_from(at.as_secs()).ok()?, at.subsec_nanos().into())))
            .is_some_and(|at| self.changed < at)
    }
}

/// Returns the remembered hash of a file, if `stamp` shows that the file has not changed.
fn seen(folder: &Folder, name: &str, stamp: &Stamp) -> Option<Hash> {
    let file = folder.open_own(name).ok()??;
    let bytes = file.take(LARGEST_CONFIG);
    let seen: Seen = serde_json::from_reader(io::BufReader::new(bytes)).ok()?;
    (seen.stamp == *stamp).then(|| Hash::from_hex(&seen.hash).ok())?
}

fn remember(folder: &Folder, name: &str, seen: &Seen) -> io::Result<()> {
    let file = folder.temporary(name)?;
    file.file().write_all(&serde_json::to_vec(seen)?)?;
    file.keep()
}

fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

/// Counter of the bytes that were read, over all files.
struct Counter<'p> {
    done: u64,
    total: u64,
    progress: &'p mut dyn FnMut(LoadProgress),
}

impl Counter<'_> {
    fn report(&mut self, done: u64) {
        (self.progress)(LoadProgress {
            phase: LoadPhase::Checking,
            done,
            total: self.total,
        });
    }
}

/// Returns the hash over the hashes of a file's segments. The segments are read on as many
/// threads as cores are available.
fn read(file: &File, counter: &mut Counter<'_>) -> io::Result<Hash> {
    let size = file.metadata()?.len();
    let count = usize::try_from(size.div_ceil(SEGMENT as u64)).map_err(io::Error::other)?;
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let hashes = Mutex::new(vec![None; count]);
    let work = |report: &mut dyn FnMut(usize)| -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            let from = at as u64 * SEGMENT as u64;
            let hash = segment(file, from..size.min(from + SEGMENT as u64), &mut buffer)?;
            hashes.lock().unwrap_or_else(|broken| broken.into_inner())[at] = Some(hash);
            report(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let before = counter.done;
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count))
            .map(|_| scope.spawn(|| work(&mut |_| ())))
            .collect();
        work(&mut |done| {
            let done = before + (done as u64 * SEGMENT as u64).min(size);
            counter.report(done);
        })?;
        others.into_iter().try_for_each(|other| {
            let panicked = |_| io::Error::other("a thread that reads panicked");
            other.join().map_err(panicked)?
        })
    })?;
    // Another thread may have read the last segment.
    counter.done = before + size;
    counter.report(counter.done);
    let mut all = Hasher::new();
    let hashes = hashes
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    for hash in hashes.into_iter().flatten() {
        all.update(hash.as_bytes());
    }
    all.update(&size.to_le_bytes());
    Ok(all.finalize())
}

fn segment(file: &File, range: std::ops::Range<u64>, buffer: &mut [u8]) -> io::Result<Hash> {
    let (mut hasher, mut from) = (Hasher::new(), range.start);
    while from < range.end {
        let length = buffer
            .len()
            .min(usize::try_from(range.end - from).unwrap_or(usize::MAX));
        let piece = &mut buffer[..length];
        file.read_exact_at(piece, from)?;
        hasher.update(piece);
        from += length as u64;
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests;
