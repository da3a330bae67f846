use std::fs::{create_dir, create_dir_all, write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::*;
use crate::beneath::{FILE, beneath, folder as opened, resolved};

mod shared;

/// A folder with a file, and with everything else that may lie in one.
fn folder() -> tempfile::TempDir {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("model");
    create_dir_all(folder.join("inner/deep")).expect("made");
    write(folder.join("file"), "text").expect("written");
    write(folder.join("inner/file"), "inner").expect("written");
    write(parent.path().join("secret"), "secret").expect("written");
    symlink("file", folder.join("link")).expect("linked");
    symlink("inner/../file", folder.join("around")).expect("linked");
    symlink("../file", folder.join("inner/up")).expect("linked");
    symlink("../secret", folder.join("out")).expect("linked");
    symlink(parent.path().join("secret"), folder.join("absolute")).expect("linked");
    symlink("..", folder.join("parent")).expect("linked");
    symlink("loop", folder.join("loop")).expect("linked");
    symlink("gone", folder.join("dangling")).expect("linked");
    symlink("/proc/self/fd/0", folder.join("magic")).expect("linked");
    symlink("/dev/zero", folder.join("endless")).expect("linked");
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, mode, 0).expect("made");
    UnixListener::bind(folder.join("socket")).expect("bound");
    parent
}

type Open = fn(&OwnedFd, &Path, OFlags) -> io::Result<OwnedFd>;

#[test]
fn regular_files_below_are_opened_and_nothing_else() {
    let parent = folder();
    let model = parent.path().join("model");
    let alias = parent.path().join("alias");
    symlink(&model, &alias).expect("linked");
    for folder in [&model, &alias] {
        for (name, text) in [
            ("file", "text"),
            ("link", "text"),
            ("around", "text"),
            ("inner/file", "inner"),
            ("inner/up", "text"),
        ] {
            assert_eq!(read(folder, name, 5).expect(name), text.as_bytes());
        }
        for name in [
            "out",
            "absolute",
            "parent/secret",
            "endless",
            "pipe",
            "socket",
            "inner",
            "loop",
            "magic",
            "",
            ".",
            "..",
            "../secret",
            "./file",
            "/etc/passwd",
            "inner/../../secret",
        ] {
            let error = open(folder, name).expect_err(name);
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{name}");
        }
        for name in ["gone", "dangling", "none/file"] {
            let error = open(folder, name).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name}");
        }
    }
}

/// The kernel's call, and following links here, come to the same places.
#[test]
fn both_ways_to_open_agree() {
    let parent = folder();
    let model = opened(&parent.path().join("model")).expect("there");
    // The largest number of links, and one more.
    symlink("file", parent.path().join("model/chain1")).expect("linked");
    for at in 2..=41 {
        let link = parent.path().join(format!("model/chain{at}"));
        symlink(format!("chain{}", at - 1), link).expect("linked");
    }
    for name in [
        "chain40",
        "chain41",
        "file",
        "link",
        "around",
        "inner/file",
        "inner/up",
        "out",
        "absolute",
        "parent/secret",
        "loop",
        "dangling",
        "gone",
        "none/file",
        "file/file",
        "endless",
        "magic",
        "pipe",
        "inner",
        "inner/..",
        "inner/../..",
        "inner/../../secret",
        "inner/deep/../file",
        "inner/deep/../../link",
        "./file",
        "/etc/passwd",
    ] {
        let [one, other] = [beneath as Open, resolved].map(|open| {
            let opened = open(&model, Path::new(name), FILE);
            opened.map(|_| ()).map_err(|error| error.raw_os_error())
        });
        assert_eq!(one, other, "{name}");
    }
}

/// Without the kernel's help each folder on the way is open, and the number of those is
/// limited.
#[test]
fn a_path_leads_through_few_folders_at_a_time() {
    let root = tempfile::tempdir().expect("a folder");
    let deep = |depth: usize| "d/".repeat(depth) + "file";
    let folder = root.path().join("d/".repeat(300));
    create_dir_all(&folder).expect("made");
    for depth in [1, 256, 257] {
        write(root.path().join(deep(depth)), "").expect("written");
    }
    let root = opened(root.path()).expect("there");
    let back = "d/../".repeat(400) + &deep(1);
    for path in [deep(1), deep(256), back] {
        resolved(&root, Path::new(&path), FILE).expect("found");
    }
    let error = resolved(&root, Path::new(&deep(257)), FILE).expect_err("too deep");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())
    );
}

#[test]
fn the_hubs_snapshots_may_link_to_their_blobs() {
    let cache = tempfile::tempdir().expect("a folder");
    let repository = cache.path().join("models--x--y");
    let snapshot = repository.join("snapshots/0123");
    create_dir_all(&snapshot).expect("made");
    write(cache.path().join("token"), "secret").expect("written");
    symlink("../../blobs/abc", snapshot.join("config.json")).expect("linked");
    symlink("../../../token", snapshot.join("merges.txt")).expect("linked");
    let alias = cache.path().join("alias");
    symlink(&snapshot, &alias).expect("linked");
    for folder in [&snapshot, &alias] {
        let without_blobs = open(folder, "config.json").expect_err("no blobs");
        assert!(without_blobs.to_string().contains("link out"));
    }
    // Links of the snapshot's own folders may lead there, too. Links of other folders that a
    // link leads to may not.
    create_dir(snapshot.join("inner")).expect("made");
    symlink("../../../blobs/abc", snapshot.join("inner/deep")).expect("linked");
    create_dir(cache.path().join("other")).expect("made");
    symlink("../../../blobs/abc", cache.path().join("other/deep")).expect("linked");
    symlink("../../../other", snapshot.join("outer")).expect("linked");
    create_dir(repository.join("blobs")).expect("made");
    write(repository.join("blobs/abc"), "{}").expect("written");
    for folder in [&snapshot, &alias] {
        assert_eq!(read(folder, "config.json", 2).expect("a blob"), b"{}");
        assert_eq!(read(folder, "inner/deep", 2).expect("a blob"), b"{}");
        for name in ["merges.txt", "outer/deep"] {
            let error = open(folder, name).expect_err("the cache's own file");
            assert!(error.to_string().contains("link out"), "{name}: {error}");
        }
    }
}

/// Links of a snapshot lead to where the kernel says, inside the repository only.
#[test]
fn links_of_linked_folders_lead_from_where_they_are() {
    let cache = tempfile::tempdir().expect("a folder");
    let repository = cache.path().join("models--x--y");
    let snapshot = repository.join("snapshots/0123");
    for folder in ["blobs", "snapshots/0123/real/nested", "snapshots/4567/deep"] {
        create_dir_all(repository.join(folder)).expect("made");
    }
    write(cache.path().join("token"), "secret").expect("written");
    for blob in ["abc", "def"] {
        write(repository.join("blobs").join(blob), blob).expect("written");
    }
    for (target, link) in [
        ("abc", "blobs/chain"),
        ("../../token", "blobs/out"),
        ("../../blobs/abc", "snapshots/0123/plain"),
        ("../../blobs/chain", "snapshots/0123/twice"),
        ("../../blobs/out", "snapshots/0123/leak"),
        ("../../blobs/gone", "snapshots/0123/dangling"),
        ("real/nested", "snapshots/0123/linked"),
        ("linked", "snapshots/0123/again"),
        ("../../../../blobs/abc", "snapshots/0123/real/nested/file"),
        ("../../../blobs/abc", "snapshots/0123/real/nested/near"),
        ("../../../../../token", "snapshots/0123/real/nested/far"),
        ("../4567", "snapshots/0123/other"),
        ("../../blobs/def", "snapshots/4567/file"),
        ("../../../blobs/def", "snapshots/4567/deep/file"),
        ("../../../x", "snapshots/0123/outside"),
    ] {
        symlink(target, repository.join(link)).expect("linked");
    }
    symlink(repository.join("blobs/abc"), snapshot.join("absolute")).expect("linked");
    let root = opened(&repository).expect("there");
    for (name, text) in [
        ("plain", Some("abc")),
        ("twice", Some("abc")),
        ("leak", None),
        ("dangling", None),
        ("real/nested/file", Some("abc")),
        ("linked/file", Some("abc")),
        ("again/file", Some("abc")),
        ("linked/near", None),
        ("linked/far", None),
        ("other/file", Some("def")),
        ("other/deep/file", Some("def")),
        ("outside/file", None),
        ("absolute", None),
    ] {
        let found = read(&snapshot, name, 9);
        assert_eq!(found.as_deref().ok(), text.map(str::as_bytes), "{name}");
        let path = Path::new("snapshots/0123").join(name);
        let kernel = beneath(&root, &path, FILE);
        let is_absent = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        assert_eq!(
            found.map_err(is_absent).map(|_| ()),
            kernel.map_err(is_absent).map(|_| ()),
            "{name}"
        );
    }
}

#[test]
fn sizes_are_bounded_whatever_files_say() {
    let parent = folder();
    let model = parent.path().join("model");
    assert_eq!(read(&model, "file", 4).expect("fits"), b"text");
    let error = read(&model, "file", 3).expect_err("too large");
    assert_eq!(error.to_string(), "it has more than 3 bytes");
    // The file's size is reported as zero.
    let endless = read(Path::new("/proc/self"), "status", 10).expect_err("too large");
    assert_eq!(endless.to_string(), "it has more than 10 bytes");
    // A sparse file: refused before memory is taken for it.
    let sparse = File::create(model.join("sparse")).expect("made");
    sparse.set_len(1 << 40).expect("a hole");
    assert!(read(&model, "sparse", LARGEST_CONFIG).is_err());
}

/// A file may grow while it is read, or have a length of 0 in its metadata.
#[test]
fn what_has_no_end_is_not_read_to_it() {
    let mut endless = io::repeat(7).take(1 << 20);
    let error = read_at_most(&mut endless, 0, 10).expect_err("too large");
    assert_eq!(error.to_string(), "it has more than 10 bytes");
    assert_eq!(endless.limit(), (1 << 20) - 11, "one more is enough");
}

#[test]
fn texts_may_be_absent() {
    let parent = folder();
    let model = parent.path().join("model");
    write(model.join("bytes"), [0xFF]).expect("written");
    assert_eq!(
        read_text(&model, "file", 9).expect("read"),
        Some("text".into())
    );
    assert_eq!(read_text(&model, "gone", 9).expect("absent"), None);
    // One that can't be read is there.
    for (name, most) in [("out", 9), ("inner", 9), ("file", 3)] {
        read_text(&model, name, most).expect_err(name);
    }
    let error = read_text(&model, "bytes", 9).expect_err("no UTF-8");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}
