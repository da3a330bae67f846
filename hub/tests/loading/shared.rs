//! Caches in which huggingface_hub keeps large files once for all repositories, and caches
//! with links to forbidden places.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use lockstep_hub::{Cached, HubError};

use crate::{SHARDS, Scene, files};

impl Scene {
    /// Loads the model, and moves its weights to the cache's store, as huggingface_hub
    /// does with its files.
    fn load_shared(&self) -> PathBuf {
        let fetched = self.load().expect("loaded");
        let store = self.settings.cache.join("blobs");
        for (shard, digit) in SHARDS.into_iter().zip(["a", "b"]) {
            let blob = self.repository().join("blobs").join(self.etag_of(shard));
            let (group, hash) = (digit.repeat(2), digit.repeat(64));
            fs::create_dir_all(store.join(&group)).expect("made");
            fs::rename(&blob, store.join(&group).join(&hash)).expect("moved");
            symlink(format!("../../blobs/{group}/{hash}"), &blob).expect("linked");
        }
        fs::write(store.join(".huggingface-shared-blobs"), "1\n").expect("written");
        fetched.folder
    }

    fn etag_of(&self, file: &str) -> std::ffi::OsString {
        let blob = self.blob_of(file);
        blob.file_name().expect("a name").to_owned()
    }

    fn lacks(&self) -> Vec<String> {
        let all = Cached::all(&self.settings.cache).expect("listed");
        all[0].snapshots[0].lacks.clone()
    }
}

#[test]
fn what_is_shared_by_repositories_is_there() {
    let scene = Scene::new();
    let folder = scene.load_shared();
    assert_eq!(scene.lacks(), Vec::<String>::new());
    let again = scene.load().expect("there");
    assert_eq!((&again.folder, again.loaded), (&folder, 0));
    scene.assert_whole(&again);
    let blob = scene
        .repository()
        .join("blobs")
        .join(scene.etag_of(SHARDS[0]));
    assert!(blob.is_symlink(), "it is still shared");
}

/// A file that would be refused when it is read counts as missing: it is loaded again.
#[test]
fn what_links_lead_out_to_is_loaded_again() {
    let mut scene = Scene::new();
    let folder = scene.load_shared();
    fs::remove_file(scene.settings.cache.join("blobs/.huggingface-shared-blobs")).expect("gone");
    assert_eq!(scene.lacks(), SHARDS);
    scene.settings.offline = Some("HF_HUB_OFFLINE");
    let error = scene.load().expect_err("nobody could read it");
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    scene.settings.offline = None;
    let again = scene.load().expect("loaded");
    assert_eq!(again.folder, folder);
    scene.assert_whole(&again);
    assert_eq!(scene.lacks(), Vec::<String>::new());
}

/// If loading again would not help, the error comes before weights are loaded.
#[test]
fn a_cache_that_can_not_be_read_costs_no_weights() {
    let scene = Scene::new();
    let elsewhere = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(scene.repository()).expect("made");
    symlink(elsewhere.path(), scene.repository().join("blobs")).expect("linked");
    let text = scene.load().expect_err("nobody could read it").to_string();
    assert!(
        text.contains("config.json") && text.contains("link out") && text.contains("HF_HUB_CACHE"),
        "{text}"
    );
    for (file, _) in files() {
        assert_eq!(
            scene.hub.begins(file).len(),
            usize::from(file == "config.json")
        );
    }
}
