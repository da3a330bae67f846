//! Forming a group through a file in `/dev/shm`.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use memmap2::MmapOptions;
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::region::Region;
use super::wait;
use crate::{CollectiveError, Options};

/// Marks a region that is ready, and gives the version of its layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"lockstp3");
// No more ranks than bits of the joined mask.
pub(crate) use crate::parts::MAX_RANKS;

const DIRECTORY: &str = "/dev/shm";

/// Maps the region of group `name`, and creates it if this rank is the first. Waits until all
/// ranks have mapped it. The file is then gone.
pub(crate) fn join(
    name: &str,
    rank: usize,
    size: usize,
    options: &Options,
) -> Result<Region, CollectiveError> {
    let spec = JoinSpec {
        path: path(name, rank)?,
        rank,
        size,
        capacity: options.max_elements,
    };
    let region = spec.open_or_create()?;
    spec.check(&region)?;
    let everybody = u64::MAX >> (MAX_RANKS - size);
    let header = region.header();
    let before = header.joined.fetch_or(1 << rank, Ordering::AcqRel);
    if before & (1 << rank) != 0 {
        return Err(spec.error(format!(
            "rank {rank} is already in {}; remove the file if it is left from a crash, \
             and give every group a name of its own",
            spec.path.display()
        )));
    }
    header.joins.fetch_add(1, Ordering::SeqCst);
    if before | (1 << rank) == everybody {
        spec.unlink();
        // The group is complete once the file is gone, not before.
        header.complete.store(1, Ordering::Release);
        header.joins.fetch_add(1, Ordering::SeqCst);
    }
    wait::wake(&header.joins);
    spec.wait_for_all(&region, options)?;
    Ok(region)
}

struct JoinSpec {
    path: PathBuf,
    rank: usize,
    size: usize,
    capacity: usize,
}

impl JoinSpec {
    fn open_or_create(&self) -> Result<Region, CollectiveError> {
        // A region that appears between the two looks is found by the second.
        for _ in 0..3 {
            if let Some(region) = self.open()? {
                return Ok(region);
            }
            if let Some(region) = self.create()? {
                return Ok(region);
            }
        }
        Err(self.error(format!("{} appears and vanishes", self.path.display())))
    }

    fn open(&self) -> Result<Option<Region>, CollectiveError> {
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nofollow)
            .open(&self.path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.system("open", &error)),
        };
        let metadata = file
            .metadata()
            .map_err(|error| self.system("stat", &error))?;
        let private = metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o077 == 0
            && metadata.is_file();
        if !private {
            let path = self.path.display();
            return Err(self.error(format!("{path} is not a private file of this user")));
        }
        self.map(&file).map(Some)
    }

    /// Creates the file, complete. Returns `None` if the file exists by now.
    fn create(&self) -> Result<Option<Region>, CollectiveError> {
        let mut draft = self.path.clone().into_os_string();
        draft.push(format!(".{}.{}", std::process::id(), self.rank));
        let draft = PathBuf::from(draft);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft);
        let file = file.map_err(|error| self.system("create", &error))?;
        let region = self.fill(&file);
        let linked = std::fs::hard_link(&draft, &self.path);
        let _ = std::fs::remove_file(&draft);
        let region = region?;
        match linked {
            Ok(()) => Ok(Some(region)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(self.system("link", &error)),
        }
    }

    fn fill(&self, file: &File) -> Result<Region, CollectiveError> {
        let bytes = self.bytes()? as u64;
        // The bytes are reserved now, because a full /dev/shm would otherwise kill the process
        // by SIGBUS at the first write.
        fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(|error| {
            self.system(
                &format!("reserve {bytes} bytes (a container needs a larger --shm-size) in"),
                &error,
            )
        })?;
        let region = self.map(file)?;
        let header = region.header();
        header.ranks.store(self.size as u64, Ordering::Relaxed);
        header
            .capacity
            .store(self.capacity as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    fn map(&self, file: &File) -> Result<Region, CollectiveError> {
        let bytes = self.bytes()?;
        let length = file
            .metadata()
            .map_err(|error| self.system("stat", &error))?
            .len();
        if length < bytes as u64 {
            return Err(self.error(format!(
                "{} has {length} bytes instead of {bytes}: ranks disagree about size or max_elements",
                self.path.display()
            )));
        }
        let map = MmapOptions::new().len(bytes).map_raw(file);
        let map = map.map_err(|error| self.system("map", &error))?;
        Region::mapped(map, self.size, self.capacity)
            .ok_or_else(|| self.error("the mapping is too small".into()))
    }

    fn check(&self, region: &Region) -> Result<(), CollectiveError> {
        let header = region.header();
        let magic = header.magic.load(Ordering::Acquire);
        let theirs = (
            header.ranks.load(Ordering::Relaxed),
            header.capacity.load(Ordering::Relaxed),
        );
        let ours = (self.size as u64, self.capacity as u64);
        if magic != MAGIC || theirs != ours {
            return Err(self.error(format!(
                "{} was made for {} ranks with {} elements each, this rank has {} and {}",
                self.path.display(),
                theirs.0,
                theirs.1,
                ours.0,
                ours.1
            )));
        }
        Ok(())
    }

    fn wait_for_all(&self, region: &Region, options: &Options) -> Result<(), CollectiveError> {
        let header = region.header();
        let start = Instant::now();
        loop {
            let seen = header.joins.load(Ordering::SeqCst);
            let joined = header.joined.load(Ordering::Acquire);
            if header.complete.load(Ordering::Acquire) == 1 {
                return Ok(());
            }
            let left = options.join_timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.unlink();
                let missing = (0..self.size).filter(|rank| joined & (1 << rank) == 0);
                let missing: Vec<usize> = missing.collect();
                return Err(self.error(format!(
                    "ranks {missing:?} did not come within {:?}",
                    options.join_timeout
                )));
            }
            wait::sleep(&header.joins, seen, left)
                .map_err(|error| CollectiveError::system(self.rank, "futex wait", &error))?;
        }
    }

    fn bytes(&self) -> Result<usize, CollectiveError> {
        Region::bytes(self.size, self.capacity)
            .ok_or_else(|| self.error("max_elements is too large".into()))
    }

    fn unlink(&self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }

    fn error(&self, reason: String) -> CollectiveError {
        CollectiveError::join(self.rank, reason)
    }

    fn system(&self, what: &str, error: &impl ToString) -> CollectiveError {
        CollectiveError::system(self.rank, format!("{what} {}", self.path.display()), error)
    }
}

fn path(name: &str, rank: usize) -> Result<PathBuf, CollectiveError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
        let reason = "the group's name must be 1 to 128 letters, digits, '-', '_' or '.'";
        return Err(CollectiveError::join(rank, reason));
    }
    Ok(Path::new(DIRECTORY).join(name))
}
