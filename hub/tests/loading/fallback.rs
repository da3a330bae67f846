//! The version in the cache is served after any answer of the hub.

use std::fs;
use std::time::Duration;

use lockstep_hub::{HubError, Revision, Token};
use lockstep_loopback_hub::{Fault, commit};

use crate::{NAME, SHARDS, Scene, wanted};

/// Refusals, and the number of requests to the hub before the cache will do.
#[test]
fn refusals_stop_nobody_who_has_the_model() {
    for (status, header, value, with_token, requests) in [
        (429, "retry-after", "300", false, 1),
        (401, "x-error-code", "RepoNotFound", false, 1),
        (401, "x-other", "", true, 1),
        (403, "x-error-code", "GatedRepo", true, 1),
        (404, "x-error-code", "RepoNotFound", true, 1),
        (451, "x-other", "", false, 1),
        (302, "location", "ftp://a/b", false, 1),
        (500, "x-other", "", false, 2),
        (429, "retry-after", "0", false, 2),
    ] {
        let mut scene = Scene::new();
        scene.settings.limits.attempts = 6;
        scene.settings.limits.longest_pause = Duration::from_secs(330);
        let loaded = scene.load().expect("loaded");
        let before = scene.hub.seen().len();
        if with_token {
            scene.settings.token = Some(Token::new("hf_own", "the test").expect("a token"));
        }
        for _ in 0..6 {
            let headers = vec![(header, value.to_owned())];
            scene.hub.fault(NAME, Fault::Status(status, headers));
        }
        let again = scene
            .load()
            .unwrap_or_else(|error| panic!("{status}: {error}"));
        assert_eq!((again.folder, again.loaded), (loaded.folder, 0), "{status}");
        let notes = scene.notes.lock().expect("notes").join(" ");
        assert!(notes.contains("is as it was"), "{status}: {notes}");
        assert_eq!(
            scene.hub.seen().len() - before,
            requests,
            "{status}: {notes}"
        );
    }
}

/// A small file of another version stops nobody either: neither if the hub asks for a pause
/// of minutes, nor if another program holds the file.
#[test]
fn a_small_file_that_is_away_stops_nobody_who_has_the_model() {
    let file = "generation_config.json";
    let minutes = || Fault::Status(429, vec![("retry-after", "300".to_owned())]);
    let away = || Fault::Status(500, vec![]);
    for (faults, is_held, word) in [
        (vec![minutes()], false, "too many requests"),
        (vec![away(), away()], false, "can't be reached"),
        (vec![], true, "another program has held"),
    ] {
        let mut scene = Scene::new();
        scene.settings.limits.attempts = 6;
        scene.settings.limits.longest_pause = Duration::from_secs(330);
        let loaded = scene.load().expect("loaded");
        let blob = fs::canonicalize(loaded.folder.join(file)).expect("there");
        fs::remove_file(blob).expect("removed");
        scene.settings.limits.described = Duration::from_secs(4);
        let _held = is_held.then(|| scene.hold(file));
        for fault in faults {
            scene.hub.fault(file, fault);
        }
        let again = scene.load().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((again.folder, again.loaded), (loaded.folder, 0), "{word}");
        let events = scene.events();
        assert!(
            events.contains(word) && events.contains("is as it was"),
            "{events}"
        );
    }
}

/// A revision that no longer exists is no failure of the hub.
#[test]
fn a_revision_that_is_no_more_is_told() {
    let scene = Scene::new();
    scene.load().expect("loaded");
    let headers = vec![("x-error-code", "RevisionNotFound".to_owned())];
    scene.hub.fault(NAME, Fault::Status(404, headers));
    let error = scene.load().expect_err("gone");
    assert!(matches!(error, HubError::MissingRevision { .. }), "{error}");
}

#[test]
fn a_commit_that_is_there_is_asked_of_nobody() {
    let scene = Scene::new();
    let loaded = scene.load().expect("loaded");
    let before = scene.hub.seen().len();
    let mut pinned = wanted(NAME);
    pinned.revision = Revision::parse(&commit(NAME)).expect("a commit");
    let again = scene.load_as(&pinned, &|_| Ok(())).expect("there");
    assert_eq!((again.folder, again.loaded), (loaded.folder.clone(), 0));
    assert_eq!(scene.hub.seen().len(), before);
    // A model that can't be served is reported all the same, and missing files are loaded.
    let refused = scene.load_as(&pinned, &|_| Err("unknown".into()));
    assert!(
        matches!(refused, Err(HubError::Unsupported { .. })),
        "{refused:?}"
    );
    for file in ["tokenizer_config.json", SHARDS[0]] {
        fs::remove_file(loaded.folder.join(file)).expect("removed");
        let again = scene.load_as(&pinned, &|_| Ok(())).expect("loaded");
        scene.assert_whole(&again);
    }
}

#[test]
fn another_commit_than_was_asked_for_is_refused() {
    let scene = Scene::new();
    let mut pinned = wanted(NAME);
    pinned.revision = Revision::parse(&"0".repeat(40)).expect("a commit");
    let main = format!("/api/models/{NAME}/revision/main?blobs=true");
    scene.hub.fault(NAME, Fault::Redirect(main));
    let error = scene.load_as(&pinned, &|_| Ok(())).expect_err("another");
    let text = error.to_string();
    assert!(matches!(error, HubError::Answer { .. }), "{text}");
    assert!(
        text.contains(&commit(NAME)) && text.contains(&"0".repeat(40)),
        "{text}"
    );
    assert!(!scene.repository().exists());
}
