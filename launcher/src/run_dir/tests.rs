use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use super::{LOCK, RunDir};
use crate::error::LaunchError;

#[test]
fn private_while_it_lives_and_gone_afterwards() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = RunDir::create(Some(parent.path())).expect("made");
    let path = folder.path().to_owned();
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::write(path.join("file"), "x").expect("written");
    drop(folder);
    assert!(!path.exists());
}

#[test]
fn two_of_one_process_are_two() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let one = RunDir::create(Some(parent.path())).expect("made");
    let other = RunDir::create(Some(parent.path())).expect("made");
    assert_ne!(one.path(), other.path());
    assert!(
        one.path().exists(),
        "the second has not taken the first for a left-over"
    );
}

#[test]
fn left_overs_are_removed_and_nothing_else_is() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let make = |name: &str, mode, lock: bool| {
        let path = parent.path().join(name);
        DirBuilder::new().mode(mode).create(&path).expect("made");
        if lock {
            std::fs::write(path.join(LOCK), "").expect("written");
        }
        path
    };
    let stale = make("lockstep-999999999", 0o700, true);
    let kept = [
        make("lockstep-1-being-made", 0o700, false),
        make("lockstep-2-shared", 0o755, true),
        make("lockstep-notes", 0o700, true),
        make("other", 0o700, true),
    ];
    let _folder = RunDir::create(Some(parent.path())).expect("made");
    assert!(!stale.exists());
    for path in kept {
        assert!(path.exists(), "{}", path.display());
    }
}

#[test]
fn what_cannot_be_made_names_the_option() {
    let error = RunDir::create(Some("/nowhere/at/all".as_ref()))
        .map(|_| ())
        .expect_err("no parent");
    assert!(error.to_string().contains("--run-dir"), "{error}");
    let parent = tempfile::tempdir().expect("a temporary folder");
    let long = parent.path().join("x".repeat(100));
    std::fs::create_dir(&long).expect("made");
    let error = RunDir::create(Some(&long))
        .map(|_| ())
        .expect_err("too long for a socket");
    assert!(matches!(error, LaunchError::SocketPath { .. }));
}
