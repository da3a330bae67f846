//! Transfers that break are resumed, and only missing bytes are loaded again.

use std::fs;
use std::time::Duration;

use lockstep_hub::HubError;
use lockstep_loopback_hub::Fault;

use crate::{SHARDS, Scene};

/// A fault of the first shard's first answer, and the first bytes of its requests.
#[test]
fn what_breaks_is_resumed() {
    for (fault, begins) in [
        (Fault::DropAfter(100_000), vec![0, 100_000]),
        (Fault::Short(50_000), vec![0, 0]),
        (Fault::Damaged, vec![0, 0]),
        (Fault::Longer, vec![0, 0]),
        (Fault::Status(500, vec![]), vec![0, 0]),
        (Fault::Status(503, vec![]), vec![0, 0]),
        (
            Fault::Status(429, vec![("retry-after", "0".into())]),
            vec![0, 0],
        ),
        (
            Fault::Status(429, vec![("ratelimit", "\"x\";r=0;t=1".into())]),
            vec![0, 0],
        ),
    ] {
        let scene = Scene::new();
        let text = format!("{fault:?}");
        scene.hub.fault(SHARDS[0], fault);
        let fetched = scene
            .load()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        scene.assert_whole(&fetched);
        assert_eq!(scene.hub.begins(SHARDS[0]), begins, "{text}");
        assert_eq!(scene.hub.begins(SHARDS[1]), [0], "{text}");
    }
}

#[test]
fn an_answer_that_stands_still_is_given_up_and_resumed() {
    let mut scene = Scene::new();
    scene.settings.limits.stall = Duration::from_millis(300);
    scene.hub.fault(SHARDS[1], Fault::StallAfter(200_000));
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    assert_eq!(scene.hub.begins(SHARDS[1]), [0, 200_000]);
}

/// Any number of tries is allowed while each brings bytes.
#[test]
fn many_breaks_are_borne_while_bytes_come() {
    let scene = Scene::new();
    for _ in 0..8 {
        scene.hub.fault(SHARDS[0], Fault::DropAfter(30_000));
    }
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    let begins: Vec<_> = (0..9).map(|i| i * 30_000).collect();
    assert_eq!(scene.hub.begins(SHARDS[0]), begins);
}

#[test]
fn what_brings_nothing_is_given_up() {
    let scene = Scene::new();
    for _ in 0..3 {
        scene
            .hub
            .fault("tokenizer.json", Fault::Status(502, vec![]));
    }
    let error = scene.load().expect_err("given up");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("tokenizer.json") && text.contains("502"),
        "{text}"
    );
}

#[test]
fn what_is_damaged_twice_is_an_error() {
    let scene = Scene::new();
    scene.hub.fault(SHARDS[0], Fault::Damaged);
    scene.hub.fault(SHARDS[0], Fault::Damaged);
    let error = scene.load().expect_err("damaged");
    assert!(
        matches!(&error, HubError::Damaged { file, .. } if file == SHARDS[0]),
        "{error}"
    );
    // A file in git has another kind of hash.
    let scene = Scene::new();
    scene.hub.fault("tokenizer.json", Fault::Damaged);
    scene.hub.fault("tokenizer.json", Fault::Damaged);
    let error = scene.load().expect_err("damaged");
    assert!(
        matches!(&error, HubError::Damaged { file, .. } if file == "tokenizer.json"),
        "{error}"
    );
}

/// Parts that another program left, servers that ignore ranges, and damaged parts.
#[test]
fn parts_are_continued_whoever_left_them() {
    for (part, fault, begins) in [
        (&b""[..], None, vec![0]),
        (&[0; 7], None, vec![7, 0]),
        (&[0; 400_000], None, vec![0]),
        (&[], Some(Fault::Whole), vec![0]),
    ] {
        let scene = Scene::new();
        let blob = scene.blob_of(SHARDS[0]);
        fs::create_dir_all(blob.parent().expect("a folder")).expect("made");
        let incomplete = blob.with_extension("incomplete");
        fs::write(&incomplete, part).expect("written");
        if let Some(fault) = fault {
            scene.hub.fault(SHARDS[0], fault);
        }
        let fetched = scene.load().expect("loaded");
        scene.assert_whole(&fetched);
        assert_eq!(scene.hub.begins(SHARDS[0]), begins, "{} bytes", part.len());
    }
}

/// The right beginning is asked for again only if the server sends whole files.
#[test]
fn a_right_part_is_kept() {
    for (fault, begins) in [(None, vec![1000]), (Some(Fault::Whole), vec![1000])] {
        let scene = Scene::new();
        let blob = scene.blob_of(SHARDS[1]);
        fs::create_dir_all(blob.parent().expect("a folder")).expect("made");
        let content = crate::files()
            .into_iter()
            .find(|(name, _)| *name == SHARDS[1]);
        let content = content.expect("a shard").1;
        fs::write(blob.with_extension("incomplete"), &content[..1000]).expect("written");
        if let Some(fault) = fault {
            scene.hub.fault(SHARDS[1], fault);
        }
        let fetched = scene.load().expect("loaded");
        scene.assert_whole(&fetched);
        assert_eq!(scene.hub.begins(SHARDS[1]), begins);
    }
}
