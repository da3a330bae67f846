//! Opens files and folders below an open folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Flags for opening a file: without waiting for a writer, and for reading only.
pub const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Flags for opening a folder: only as a start for other paths.
pub const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the folder `path`, following all links.
pub fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, FOLDER, Mode::empty())?)
}

/// Opens `path` below `root`. Links are followed as long as they stay below `root`.
pub fn beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    const TRIES: usize = 16;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Ok(opened) => return Ok(opened),
            // Something was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Kernels before 5.6 and some sandboxes do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return resolved(root, path, flags),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Does the same as [`beneath`] without the kernel's help, one part of the path at a time. Each
/// folder is opened below the one before. Links are read and followed here, and `..` goes back
/// to a folder that is open.
pub fn resolved(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    resolved_from(root, Vec::new(), path, flags, &|_, _| None)
}

/// Opens the target of a link that may lead out of the root. Arguments: the folder with the
/// link, and the link's target. `None` for links that may not lead out.
pub type Beyond<'a> = &'a dyn Fn(&OwnedFd, &Path) -> Option<io::Result<OwnedFd>>;

/// Does the same as [`resolved`] for a `path` that begins in the last folder of `above`. Each
/// of these lies in the one before, and the first lies in `root`. If the path ends with a link
/// to a file, that link may lead `beyond`.
pub fn resolved_from(
    root: &OwnedFd,
    mut above: Vec<OwnedFd>,
    path: &Path,
    flags: OFlags,
    beyond: Beyond<'_>,
) -> io::Result<OwnedFd> {
    let mut links = 0;
    // The next part is the last of the list.
    let mut parts = Vec::new();
    push_parts(path, &mut parts)?;
    while let Some(part) = parts.pop() {
        if part == ".." {
            above.pop().ok_or_else(leads_out)?;
            continue;
        }
        let here = above.last().unwrap_or(root);
        match rustix::fs::readlinkat(here, &part, Vec::<u8>::new()) {
            Ok(target) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                if parts.is_empty()
                    && let Some(opened) = beyond(here, target)
                {
                    return opened;
                }
                push_parts(target, &mut parts)?;
                continue;
            }
            // The part is no link.
            Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        // If the part has become a link meanwhile, that is an error.
        let open = |flags: OFlags| {
            rustix::fs::openat(here, &part, flags.union(OFlags::NOFOLLOW), Mode::empty())
        };
        if parts.is_empty() {
            return Ok(open(flags)?);
        }
        if above.len() == DEEPEST {
            return Err(Errno::NAMETOOLONG.into());
        }
        let folder = open(FOLDER)?;
        above.push(folder);
    }
    let here = above.last().unwrap_or(root);
    Ok(rustix::fs::openat(here, ".", flags, Mode::empty())?)
}

/// Number of links that a path may lead over, as many as for the kernel.
const MOST_LINKS: usize = 40;
/// Number of open folders on the way to a file. Links could lead through any number of folders,
/// and use up the process's descriptors.
const DEEPEST: usize = 256;

/// Puts the parts of a path, which begins below its root, before the parts to come.
fn push_parts(path: &Path, parts: &mut Vec<OsString>) -> io::Result<()> {
    for part in path.components().rev() {
        match part {
            Component::Normal(_) | Component::ParentDir => parts.push(part.as_os_str().to_owned()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(leads_out()),
        }
    }
    Ok(())
}

/// The error of [`beneath`] for a link that leads out of its root.
pub fn leads_out() -> io::Error {
    Errno::XDEV.into()
}

/// Returns true for the error [`leads_out`].
pub fn is_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}
