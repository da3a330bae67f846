//! The cache is shared with all the hub's programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use lockstep_hub::{Cached, HubError, Kind, Name, Revision};
use lockstep_loopback_hub::commit;

use crate::{NAME, SHARDS, Scene, files, wanted};

impl Scene {
    /// Path of the content of a file of the model.
    pub(crate) fn blob_of(&self, file: &str) -> PathBuf {
        let other = Scene::new();
        let fetched = other.load().expect("loaded elsewhere");
        let target = fs::read_link(fetched.folder.join(file)).expect("a link");
        let etag = target.file_name().expect("a name");
        self.repository().join("blobs").join(etag)
    }

    /// Holds the lock of a file, as another program would.
    pub(crate) fn hold(&self, file: &str) -> (PathBuf, fs::File) {
        let mut lock = self.blob_of(file).into_os_string();
        lock.push(".lock");
        let locks = ".locks/models--owner--Some-Model.1";
        let locks = self.settings.cache.join(locks);
        fs::create_dir_all(&locks).expect("made");
        let path = locks.join(Path::new(&lock).file_name().expect("a name"));
        let held = fs::File::create(&path).expect("made");
        held.lock().expect("locked");
        (path, held)
    }
}

#[test]
fn the_layout_is_huggingface_hubs() {
    let scene = Scene::new();
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    let commit = commit(NAME);
    assert_eq!(fetched.commit, commit);
    assert_eq!(
        fetched.folder,
        scene.repository().join("snapshots").join(&commit)
    );
    let main = fs::read_to_string(scene.repository().join("refs/main"));
    assert_eq!(main.expect("a reference"), commit);
    // Digits of the hashes of `git hash-object` and `sha256sum`.
    for (file, digits) in [("config.json", 40), (SHARDS[0], 64)] {
        let target = fs::read_link(fetched.folder.join(file)).expect("a link");
        assert!(target.starts_with("../../blobs"), "{target:?}");
        let etag = target
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        assert_eq!(etag.len(), digits);
        let locks = scene
            .settings
            .cache
            .join(".locks/models--owner--Some-Model.1");
        assert!(locks.join(format!("{etag}.lock")).exists());
    }
}

#[test]
fn what_is_there_is_not_loaded_again() {
    let mut scene = Scene::new();
    let first = scene.load().expect("loaded");
    let before = scene.hub.seen().len();
    let second = scene.load().expect("there");
    assert_eq!((second.folder, second.loaded), (first.folder.clone(), 0));
    // The request asks whether `main` is still this commit.
    assert_eq!(scene.hub.seen().len(), before + 1);
    scene.settings.offline = Some("HF_HUB_OFFLINE");
    assert_eq!(scene.load().expect("there").folder, first.folder);
    let mut by_commit = wanted(NAME);
    by_commit.revision = Revision::parse(&first.commit).expect("a commit");
    let found = scene.load_as(&by_commit, &|_| Ok(())).expect("there");
    assert_eq!(found.folder, first.folder);
    assert_eq!(scene.hub.seen().len(), before + 1);
}

#[test]
fn offline_says_what_is_not_there() {
    let mut scene = Scene::new();
    scene.settings.offline = Some("HF_HUB_OFFLINE");
    let text = scene.load().expect_err("empty").to_string();
    assert!(
        text.contains("HF_HUB_OFFLINE") && text.contains("lockstep pull"),
        "{text}"
    );
    assert!(scene.hub.seen().is_empty());
    scene.settings.offline = None;
    let fetched = scene.load().expect("loaded");
    fs::remove_file(fetched.folder.join(SHARDS[1])).expect("removed");
    scene.settings.offline = Some("HF_HUB_OFFLINE");
    let error = scene.load().expect_err("incomplete");
    assert!(
        matches!(&error, HubError::Offline { lacks, .. } if lacks == SHARDS[1]),
        "{error}"
    );
}

/// A hub that is away stops no user who has the model.
#[test]
fn the_last_version_serves_while_the_hub_is_away() {
    let mut scene = Scene::new();
    let loaded = scene.load().expect("loaded");
    // Nothing listens there.
    scene.settings.endpoint = "http://127.0.0.1:1".to_owned();
    assert_eq!(scene.load().expect("there").folder, loaded.folder);
    let notes = scene.notes.lock().expect("notes").join(" ");
    assert!(notes.contains("can't be reached"), "{notes}");
    let error = scene
        .load_as(&wanted("owner/other"), &|_| Ok(()))
        .expect_err("away");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
}

/// A size beyond every disk is refused before a byte of the file is asked for.
#[test]
fn a_disk_that_is_too_small_is_told_before() {
    let scene = Scene::new();
    scene.hub.claim_size(SHARDS[0], 1 << 60);
    let error = scene.load().expect_err("no disk has that");
    assert!(matches!(error, HubError::Space { .. }), "{error}");
    assert!(scene.hub.begins(SHARDS[0]).is_empty());
}

/// Two programs load one model: each file comes once.
#[test]
fn files_come_once_for_all() {
    let scene = Scene::new();
    let both: Vec<_> = thread::scope(|scope| {
        let start = || scope.spawn(|| scene.load().expect("loaded"));
        let both = [start(), start()];
        both.into_iter()
            .map(|one| one.join().expect("ended"))
            .collect()
    });
    assert_eq!(both[0].folder, both[1].folder);
    scene.assert_whole(&both[0]);
    for (file, _) in files().iter().filter(|(file, _)| crate::is_served(file)) {
        assert_eq!(scene.hub.begins(file), [0], "{file}");
    }
}

#[test]
fn who_waits_for_another_program_says_so() {
    let scene = Scene::new();
    let (_, lock) = scene.hold("config.json");
    let (sender, events) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let tell = move |event: lockstep_hub::Event<'_>| {
                if let lockstep_hub::Event::Note(text) = event {
                    let _ = sender.send(text.to_owned());
                }
            };
            let hub = lockstep_hub::Hub::new(scene.settings.clone(), tell);
            hub.fetch(&wanted(NAME), &|_| Ok(())).expect("loaded");
        });
        let text = events.recv().expect("a note");
        assert!(
            text.contains("Another program is loading config.json"),
            "{text}"
        );
        drop(lock);
    });
}

#[test]
fn the_cache_is_listed() {
    let scene = Scene::new();
    assert!(Cached::all(&scene.settings.cache).expect("none").is_empty());
    scene.load().expect("loaded");
    fs::create_dir_all(scene.settings.cache.join("datasets--a--b")).expect("made");
    let all = Cached::all(&scene.settings.cache).expect("listed");
    let [model] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(model.name, Name::parse(NAME).expect("a name"));
    let [snapshot] = model.snapshots.as_slice() else {
        panic!("{model:?}");
    };
    assert_eq!(
        (&snapshot.commit, &snapshot.revisions),
        (&commit(NAME), &vec!["main".into()])
    );
    let served = files()
        .into_iter()
        .filter(|(file, _)| crate::is_served(file));
    assert_eq!(
        snapshot.size,
        served.map(|(_, content)| content.len() as u64).sum::<u64>()
    );
    assert_eq!(snapshot.lacks, Vec::<String>::new());
    fs::remove_file(snapshot.folder.join(SHARDS[0])).expect("removed");
    let all = Cached::all(&scene.settings.cache).expect("listed");
    assert_eq!(all[0].snapshots[0].lacks, [SHARDS[0]]);
}

/// Links of the cache stay inside its repository, so they may be opened.
#[test]
fn a_snapshot_is_a_models_folder() {
    let scene = Scene::new();
    let mut wanted = wanted(NAME);
    wanted.kind = Kind::Draft;
    let fetched = scene.load_as(&wanted, &|_| Ok(())).expect("loaded");
    for (file, content) in files().iter().filter(|(file, _)| crate::is_served(file)) {
        let read = lockstep_files::read(Path::new(&fetched.folder), file, 1 << 30);
        assert_eq!(read.expect("a file").len(), content.len());
    }
}

/// A cache that can only be read, and was filled by programs that keep no locks in it.
#[test]
fn a_complete_model_needs_nothing_written() {
    let scene = Scene::new();
    scene.load().expect("loaded");
    let locks = scene.settings.cache.join(".locks");
    fs::remove_dir_all(&locks).expect("removed");
    // Nobody, not even root, can make folders or files inside these files.
    fs::write(&locks, "").expect("written");
    let refs = scene.repository().join("refs");
    fs::remove_dir_all(&refs).expect("removed");
    fs::write(&refs, "").expect("written");
    let again = scene.load().expect("it is there");
    assert_eq!(again.loaded, 0);
    let notes = scene.notes.lock().expect("notes").join(" ");
    assert!(notes.contains("is not kept"), "{notes}");
}

/// The part of a program that was killed is used, although it has a name of its own.
#[test]
fn what_a_killed_program_had_is_gone_on_with() {
    let scene = Scene::new();
    let blob = scene.blob_of(SHARDS[1]);
    fs::create_dir_all(blob.parent().expect("a folder")).expect("made");
    let content = files().into_iter().find(|(name, _)| *name == SHARDS[1]);
    let content = content.expect("a shard").1;
    let part = blob.with_extension("lockstep-0a1b.incomplete");
    fs::write(part, &content[..1000]).expect("written");
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    assert_eq!(scene.hub.begins(SHARDS[1]), [1000]);
}
