//! The store of blobs that all repositories of a cache may link to.

use std::path::PathBuf;

use super::*;

/// A cache with a repository whose blobs lead to the store, and to places outside of it.
struct Cache {
    folder: tempfile::TempDir,
    snapshot: PathBuf,
}

fn hash(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn cache() -> Cache {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, of_a) = (folder.path().join("blobs"), hash('a'));
    let repository = folder.path().join("models--x--y");
    let snapshot = repository.join("snapshots/0123");
    create_dir_all(store.join("aa")).expect("made");
    create_dir_all(store.join("bb")).expect("made");
    create_dir_all(&snapshot).expect("made");
    create_dir(repository.join("blobs")).expect("made");
    write(store.join("aa").join(&of_a), "weights").expect("written");
    write(store.join("aa").join(format!("{of_a}.refs")), "refs").expect("written");
    // Files in the store that are not the store's own: with another group's hash, and with
    // names that are no hashes.
    let (short, other) = ("a".repeat(40), "z".repeat(64));
    create_dir_all(store.join("zz")).expect("made");
    write(store.join("bb").join(&of_a), "elsewhere").expect("written");
    write(store.join("aa").join(&short), "short").expect("written");
    write(store.join("zz").join(&other), "no hash").expect("written");
    create_dir_all(store.join("real")).expect("made");
    write(store.join("real").join(hash('e')), "linked").expect("written");
    symlink("real", store.join("ee")).expect("linked");
    write(folder.path().join("token"), "secret").expect("written");
    symlink("../../token", store.join("bb").join(hash('b'))).expect("linked");
    symlink("aa", store.join("cc")).expect("linked");
    for (name, target) in [
        ("good", format!("../../blobs/aa/{of_a}")),
        ("elsewhere", format!("../../blobs/bb/{of_a}")),
        ("linked", format!("../../blobs/bb/{}", hash('b'))),
        ("linked-folder", format!("../../blobs/cc/{of_a}")),
        ("linked-group", format!("../../blobs/ee/{}", hash('e'))),
        ("short", format!("../../blobs/aa/{short}")),
        ("other", format!("../../blobs/zz/{other}")),
        ("deeper", format!("../../blobs/aa/{of_a}/deeper")),
        ("refs", format!("../../blobs/aa/{of_a}.refs")),
        ("marker", "../../blobs/.huggingface-shared-blobs".to_owned()),
        ("around", "../../blobs/aa/../../token".to_owned()),
        ("token", "../../token".to_owned()),
        ("gone", format!("../../blobs/dd/{}", hash('d'))),
    ] {
        symlink(target, repository.join("blobs").join(name)).expect("linked");
        symlink(format!("../../blobs/{name}"), snapshot.join(name)).expect("linked");
    }
    // Only links of blobs may lead there: neither links to other links, nor links beside the
    // blobs.
    create_dir(repository.join("other")).expect("made");
    symlink(
        format!("../../blobs/aa/{of_a}"),
        repository.join("other/way"),
    )
    .expect("linked");
    symlink("../../other/way", snapshot.join("on_reader_thread")).expect("linked");
    let past = format!("../../../blobs/aa/{of_a}");
    symlink(past, snapshot.join("past")).expect("linked");
    Cache { folder, snapshot }
}

impl Cache {
    fn mark(&self, text: &str) {
        let marker = self.folder.path().join("blobs/.huggingface-shared-blobs");
        write(marker, text).expect("written");
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        read(&self.snapshot, name, 9)
    }
}

#[test]
fn blobs_may_lie_in_the_store_of_all_repositories() {
    let cache = cache();
    cache.mark("1\n");
    assert_eq!(cache.read("good").expect("shared"), b"weights");
    for name in [
        "elsewhere",
        "linked",
        "linked-folder",
        "linked-group",
        "short",
        "other",
        "deeper",
        // A file of the store is no folder on the way to another file.
        "good/deeper",
        "refs",
        "marker",
        "around",
        "token",
        "past",
        "on_reader_thread",
    ] {
        assert!(cache.read(name).is_err(), "{name}");
    }
    let gone = cache.read("gone").expect_err("nothing there");
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    // The same holds for a folder that is kept open, such as weights that requests name.
    let root = cache.folder.path().canonicalize().expect("there");
    let kept = Kept::below(&root, &root.join("models--x--y/snapshots/0123")).expect("below");
    assert_eq!(read(kept.path(), "good", 9).expect("shared"), b"weights");
    drop(kept);
    let repository = root.join("models--x--y");
    let kept = Kept::below(&repository, &repository.join("snapshots/0123")).expect("below");
    let error = read(kept.path(), "good", 9).expect_err("the store is not below");
    assert!(error.to_string().contains("link out"), "{error}");
}

#[test]
fn a_folder_is_a_store_by_its_mark() {
    for mark in [None, Some("2\n"), Some(""), Some("1"), Some("1\n2\n")] {
        let cache = cache();
        if let Some(text) = mark {
            cache.mark(text);
        }
        let error = cache.read("good").expect_err("no store");
        assert!(error.to_string().contains("link out"), "{error}");
    }
    let cache = cache();
    cache.mark("1\n");
    let [store, moved] = ["blobs", "moved"].map(|name| cache.folder.path().join(name));
    std::fs::rename(&store, &moved).expect("moved");
    symlink("moved", &store).expect("linked");
    let error = cache.read("good").expect_err("a link is no store");
    assert!(error.to_string().contains("link out"), "{error}");
}
