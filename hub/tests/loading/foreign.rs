//! Things in the cache from other programs, or from somebody who may write there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use lockstep_hub::{Cached, HubError};
use lockstep_loopback_hub::commit;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{NAME, SHARDS, Scene};

fn pipe(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).expect("made");
}

/// A part that is a link would be written through, and a part that is a pipe waited for.
#[test]
fn parts_that_are_no_files_are_neither_followed_nor_waited_for() {
    for name in ["incomplete", "lockstep-0a1b.incomplete"] {
        for kind in ["link", "pipe", "folder"] {
            let scene = Scene::new();
            let blob = scene.blob_of(SHARDS[0]);
            fs::create_dir_all(blob.parent().expect("a folder")).expect("made");
            let other = scene.settings.cache.join("other");
            fs::write(&other, "another's").expect("written");
            let part = blob.with_extension(name);
            match kind {
                "link" => symlink(&other, &part).expect("linked"),
                "pipe" => pipe(&part),
                _ => fs::create_dir(&part).expect("made"),
            }
            scene
                .load()
                .unwrap_or_else(|error| panic!("{name}, {kind}: {error}"));
            assert_eq!(scene.hub.begins(SHARDS[0]), [0], "{name}, {kind}");
            assert_eq!(
                fs::read(&other).expect("there"),
                b"another's",
                "{name}, {kind}"
            );
        }
    }
}

/// References are short texts in files: nothing else is waited for or read.
#[test]
fn references_that_are_no_files_are_none() {
    for kind in ["pipe", "endless", "large", "folder"] {
        let scene = Scene::new();
        scene.load().expect("loaded");
        let main = scene.repository().join("refs/main");
        fs::remove_file(&main).expect("removed");
        match kind {
            "pipe" => pipe(&main),
            "endless" => symlink("/dev/zero", &main).expect("linked"),
            "large" => fs::write(&main, commit(NAME) + &" ".repeat(1000)).expect("written"),
            _ => fs::create_dir(&main).expect("made"),
        }
        let all = Cached::all(&scene.settings.cache).expect("listed");
        assert_eq!(
            all[0].snapshots[0].revisions,
            Vec::<String>::new(),
            "{kind}"
        );
        let again = scene.load();
        match kind {
            "folder" => assert!(matches!(again, Ok(_) | Err(HubError::Cache { .. }))),
            _ => assert_eq!(again.expect("there").loaded, 0, "{kind}"),
        }
    }
}

/// Links in `refs` may lead in circles, and names may hold characters that no terminal
/// should get.
#[test]
fn references_are_listed_plainly_and_without_an_end_to_come() {
    let scene = Scene::new();
    scene.load().expect("loaded");
    let refs = scene.repository().join("refs");
    for name in ["a", "b", "c"] {
        symlink(".", refs.join(name)).expect("linked");
    }
    for name in ["x\u{1b}[2J", "y\nz", "\u{202e}w"] {
        fs::write(refs.join(name), commit(NAME)).expect("written");
    }
    fs::create_dir(refs.join("pr")).expect("made");
    fs::write(refs.join("pr/1"), commit(NAME) + "\n").expect("written");
    let all = Cached::all(&scene.settings.cache).expect("listed");
    assert_eq!(all[0].snapshots[0].revisions, ["main", "pr/1"]);
}

/// Another program holds the lock and does nothing.
#[test]
fn a_lock_that_nobody_gives_back_is_told() {
    let mut scene = Scene::new();
    scene.settings.limits.lock = Duration::ZERO;
    let (path, _lock) = scene.hold(SHARDS[0]);
    let lock = path.to_string_lossy().into_owned();
    let error = scene.load().expect_err("held");
    let text = error.to_string();
    assert!(matches!(error, HubError::Locked { .. }), "{text}");
    for expected in [SHARDS[0], &lock, "End that program"] {
        assert!(text.contains(expected), "{text}");
    }
    // Does what the message says.
    fs::remove_file(&path).expect("removed");
    scene.load().expect("loaded");
}

/// Small files share the time limit of a model's description; the error names the lock and
/// not the hub.
#[test]
fn the_hub_is_not_blamed_for_a_lock_of_a_small_file() {
    for file in ["config.json", "tokenizer.json"] {
        let mut scene = Scene::new();
        scene.settings.limits.described = Duration::from_secs(4);
        let _held = scene.hold(file);
        let error = scene.load().expect_err("held");
        let text = error.to_string();
        assert!(matches!(error, HubError::Locked { .. }), "{text}");
        assert!(text.contains(file), "{text}");
    }
}
