use std::fs::{File, OpenOptions, create_dir_all, remove_file, rename, write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::time_limits::ALONE;
use crate::{open, read, within};

/// A folder with folders of one file each. The text of each file is its folder's name.
fn updates(folders: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for name in folders {
        let folder = dir.path().join(name);
        create_dir_all(&folder).expect("made");
        write(folder.join("file"), name).expect("written");
    }
    dir
}

fn text(folder: &Path) -> String {
    let bytes = read(folder, "file", 99).expect("there");
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn what_is_read_is_what_was_looked_at_wherever_its_path_leads() {
    let dir = updates(&["a", "b"]);
    let outside = updates(&["secret"]);
    let path = |name: &str| dir.path().join(name);
    let (a, b) = (path("a"), path("b"));
    let kept = Kept::below(dir.path(), &a).expect("there");
    let other = Kept::below(dir.path(), &b).expect("there");
    assert_eq!(text(&a), "a");
    assert_ne!(kept.identity(), other.identity());
    drop(other);
    rename(&a, path("moved")).expect("moved");
    rename(&b, &a).expect("moved");
    assert_eq!(text(&a), "a", "another folder lies there");
    rename(&a, &b).expect("moved");
    symlink(outside.path().join("secret"), &a).expect("linked");
    assert_eq!(text(&a), "a", "a link lies there");
    assert_eq!(text(&b), "b", "of others, nothing is known");
    kept.check().expect("as they were");
    let again = kept.clone();
    assert_eq!(again.identity(), kept.identity());
    drop(kept);
    assert_eq!(text(&a), "a", "somebody still keeps it");
    drop(again);
    assert_eq!(text(&a), "secret");
}

/// A look hangs and is given up. It goes on after the next look has ended.
#[test]
fn a_look_that_was_given_up_takes_nobodys_place() {
    let _alone = ALONE.lock().expect("no panic");
    let dir = updates(&["a", "b"]);
    let path = |name: &str| dir.path().join(name);
    let (root, a) = (dir.path().to_owned(), path("a"));
    let (go, hangs) = mpsc::channel::<()>();
    let (said, late) = mpsc::channel();
    let look = move || {
        hangs.recv().expect("it goes on");
        let kept = Kept::below(&root, &a);
        said.send(kept.map(|kept| kept.identity()))
    };
    let error = within(Duration::ZERO, look).expect_err("no time");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let kept = Kept::below(dir.path(), &path("a")).expect("there");
    go.send(()).expect("it waits");
    let late = late.recv().expect("it ends").expect_err("nobody waits");
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    rename(path("a"), path("moved")).expect("moved");
    rename(path("b"), path("a")).expect("moved");
    assert_eq!(text(&path("a")), "a", "what is kept");
    kept.check().expect("as it was");
}

#[test]
fn who_was_read_from_another_folder_hears_of_it() {
    let dir = updates(&["a"]);
    let path = dir.path().join("a");
    let keep = || Kept::below(dir.path(), &path).expect("there");
    let kept = keep();
    kept.check().expect("as it was");
    let other = keep();
    let error = kept.check().expect_err("files are found in the other");
    assert!(error.to_string().contains("meanwhile"), "{error}");
    other.check().expect("as it was");
    drop(other);
    kept.check().expect_err("files are found by the path");
}

#[test]
fn folders_below_are_kept_and_no_others() {
    let dir = updates(&["a/inner"]);
    let outside = updates(&["secret"]);
    let path = |name: &str| dir.path().join(name);
    symlink("a/inner", path("link")).expect("linked");
    symlink(outside.path(), path("out")).expect("linked");
    let alias = outside.path().join("alias");
    symlink(dir.path(), &alias).expect("linked");
    for (dir, name) in [
        (dir.path(), path("a/inner")),
        (dir.path(), path("link")),
        (alias.as_path(), path("link")),
        (alias.as_path(), alias.join("a/inner")),
    ] {
        let _kept = Kept::below(dir, &name).expect("it is inside");
        assert_eq!(text(&name), "a/inner");
    }
    for name in [
        dir.path().to_owned(),
        path("out"),
        path("out/secret"),
        path("a/../a"),
        path(".."),
        outside.path().join("secret"),
        "a".into(),
    ] {
        let error = Kept::below(dir.path(), &name).expect_err("outside");
        assert!(
            error.to_string().contains("not inside"),
            "{name:?}: {error}"
        );
    }
    assert!(Kept::below(dir.path(), &path("a/inner/file")).is_err());
    assert!(Kept::below(dir.path(), &path("gone")).is_err());
}

/// Sets the time of a file to long ago, so that any other time shows on a coarse clock.
fn settle(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("there");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    file.set_modified(long_ago).expect("set");
}

#[test]
fn files_that_change_are_noticed() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("written in place", |path| {
            let file = OpenOptions::new().write(true).open(path).expect("there");
            file.write_all_at(b"b", 0).expect("written");
        }),
        ("cut", |path| {
            let file = OpenOptions::new().write(true).open(path).expect("there");
            file.set_len(0).expect("cut");
        }),
        ("exchanged", |path| {
            let other = path.with_extension("new");
            write(&other, "a").expect("written");
            settle(&other);
            rename(other, path).expect("moved");
        }),
        ("taken away", |path| remove_file(path).expect("gone")),
        ("made anew", |path| {
            remove_file(path).expect("gone");
            File::create(path).expect("made");
        }),
    ];
    for (how, change) in changes {
        let dir = updates(&["a"]);
        let (folder, path) = (dir.path().join("a"), dir.path().join("a/file"));
        write(folder.join("other"), "").expect("written");
        settle(&path);
        let kept = Kept::below(dir.path(), &folder).expect("there");
        kept.check().expect("nothing was opened yet");
        let open_before = open(&folder, "file").expect("there");
        write(folder.join("other"), "that nobody opened").expect("written");
        kept.check().expect("as it was");
        change(&path);
        let error = kept.check().expect_err(how);
        assert!(error.to_string().contains("a/file"), "{how}: {error}");
        assert!(open(&folder, "file").is_err(), "{how}");
        drop(open_before);
    }
}

#[test]
fn all_files_that_were_opened_are_checked() {
    let dir = updates(&["a"]);
    let folder = dir.path().join("a");
    for name in ["other", "third"] {
        write(folder.join(name), "").expect("written");
    }
    for name in ["file", "other", "third"] {
        settle(&folder.join(name));
    }
    for changed in ["file", "other", "third"] {
        let kept = Kept::below(dir.path(), &folder).expect("there");
        for name in ["third", "file", "other"] {
            open(&folder, name).expect("there");
        }
        kept.check().expect("as they were");
        write(folder.join(changed), "another length").expect("written");
        let error = kept.check().expect_err("one was changed");
        let named = format!("a/{changed}");
        assert!(error.to_string().contains(&named), "{error}");
    }
}

/// A user who sets a file's times back can't set back the time of the last change.
#[test]
fn times_that_are_set_back_hide_no_change() {
    let dir = updates(&["a"]);
    let (folder, path) = (dir.path().join("a"), dir.path().join("a/file"));
    settle(&path);
    let kept = Kept::below(dir.path(), &folder).expect("there");
    open(&folder, "file").expect("there");
    let changed = || {
        let metadata = path.metadata().expect("there");
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let before = changed();
    // Until the clock of the file system has moved on.
    while changed() == before {
        let file = OpenOptions::new().write(true).open(&path).expect("there");
        file.write_all_at(b"b", 0).expect("written");
        settle(&path);
    }
    let error = kept.check().expect_err("it was changed");
    assert!(error.to_string().contains("a/file"), "{error}");
}

#[test]
fn a_folder_that_nobody_keeps_is_forgotten() {
    let dir = updates(&["a", "b"]);
    let path = |name: &str| dir.path().join(name);
    drop(Kept::below(dir.path(), &path("a")).expect("there"));
    let _other = Kept::below(dir.path(), &path("b")).expect("there");
    assert!(!super::kept().contains_key(&path("a")));
    assert!(super::kept().contains_key(&path("b")));
}

/// For example a `generation_config.json` that somebody adds after the look.
#[test]
fn files_that_appear_are_noticed() {
    let dir = updates(&["a"]);
    let folder = dir.path().join("a");
    let kept = Kept::below(dir.path(), &folder).expect("there");
    let absent = || open(&folder, "later").expect_err("absent").kind();
    assert_eq!(absent(), io::ErrorKind::NotFound);
    assert_eq!(absent(), io::ErrorKind::NotFound, "still");
    kept.check().expect("as it was");
    write(folder.join("later"), "text").expect("written");
    let error = open(&folder, "later").expect_err("it was not there");
    assert_ne!(error.kind(), io::ErrorKind::NotFound);
    let error = kept.check().expect_err("it was not there");
    assert!(error.to_string().contains("a/later"), "{error}");
    remove_file(folder.join("later")).expect("gone");
    kept.check().expect("as it was");
    assert_eq!(absent(), io::ErrorKind::NotFound);
    // A file that was there and is gone does not count as absent.
    open(&folder, "file").expect("there");
    remove_file(folder.join("file")).expect("gone");
    let error = open(&folder, "file").expect_err("it was there");
    assert_ne!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn snapshots_reach_their_blobs_where_those_are_below_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let snapshots = dir.path().join("models--x--y/snapshots");
    let snapshot = snapshots.join("0123");
    create_dir_all(&snapshot).expect("made");
    create_dir_all(dir.path().join("models--x--y/blobs")).expect("made");
    write(dir.path().join("models--x--y/blobs/abc"), "blob").expect("written");
    write(dir.path().join("secret"), "secret").expect("written");
    symlink("../../blobs/abc", snapshot.join("file")).expect("linked");
    symlink("../../../secret", snapshot.join("out")).expect("linked");
    for root in ["", "models--x--y"] {
        let _kept = Kept::below(&dir.path().join(root), &snapshot).expect("there");
        assert_eq!(text(&snapshot), "blob");
        let error = open(&snapshot, "out").expect_err("out of the repository");
        assert!(error.to_string().contains("link out"), "{error}");
    }
    // A link beside the snapshots to a folder that is no snapshot.
    create_dir_all(dir.path().join("plain")).expect("made");
    symlink("../models--x--y/blobs/abc", dir.path().join("plain/file")).expect("linked");
    symlink("../../blobs/abc", dir.path().join("plain/out")).expect("linked");
    symlink("../../plain", snapshots.join("link")).expect("linked");
    let link = snapshots.join("link");
    let _kept = Kept::below(dir.path(), &link).expect("there");
    for name in ["file", "out"] {
        let error = open(&link, name).expect_err("out of its folder");
        assert!(error.to_string().contains("link out"), "{name}: {error}");
    }
    // Nor is a link to a folder inside of a snapshot, whose own links begin in that folder.
    create_dir_all(snapshot.join("deep")).expect("made");
    symlink("../../blobs/abc", snapshot.join("deep/file")).expect("linked");
    symlink("0123/deep", snapshots.join("short")).expect("linked");
    let short = snapshots.join("short");
    let _kept = Kept::below(dir.path(), &short).expect("there");
    let error = open(&short, "file").expect_err("it leads to no blobs");
    assert!(error.to_string().contains("link out"), "{error}");
    let _kept = Kept::below(&snapshots, &snapshot).expect("there");
    let error = open(&snapshot, "file").expect_err("the blobs are outside");
    assert!(error.to_string().contains("link out"), "{error}");
}
