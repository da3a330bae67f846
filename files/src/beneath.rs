//! Opens what lies below an open folder.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// What a file is opened with: without waiting for a writer, and for reading alone.
pub const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// What a folder is opened with: as a place to find others from.
pub const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the folder `path`, whatever links lead there.
pub fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, FOLDER, Mode::empty())?)
}

/// Opens `path` below `root`, whose links are followed as long as they stay there.
pub fn beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    const TRIES: usize = 16;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Ok(opened) => return Ok(opened),
            // Something was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Kernels before 5.6, and sandboxes that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return resolved(root, path, flags),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::AGAIN.into())
}

/// As [`beneath`], with the links followed here: whoever changes a folder on the way at the right
/// moment can still lead astray.
pub fn resolved(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let root = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())).canonicalize()?;
    let real = root.join(path).canonicalize()?;
    if !real.starts_with(&root) {
        return Err(leads_out());
    }
    let flags = flags.union(OFlags::NOFOLLOW);
    Ok(rustix::fs::open(real, flags, Mode::empty())?)
}

/// What [`beneath`] says of a link that leads out of its root.
pub fn leads_out() -> io::Error {
    Errno::XDEV.into()
}

/// Whether it is [`leads_out`].
pub fn is_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}
