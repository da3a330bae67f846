//! Groups whose ranks are processes.

use std::process::{Child, Command};
use std::time::Duration;

use lockstep_collective::{Collective, CollectiveError, Kind, Options, SharedMemory};

use crate::support::{Case, check_against_oracle};

const RANKS: usize = 3;

fn name(test: &str) -> String {
    format!("lockstep-test-{}-{test}", std::process::id())
}

/// Runs `test` of this binary again as rank `rank` of the group `name`.
fn child(test: &str, name: &str, rank: usize) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", &format!("processes::{test}"), "--nocapture"])
        .env("LOCKSTEP_TEST_RANK", format!("{name} {rank}"))
        .spawn()
        .expect("start a rank")
}

/// Returns the group and rank of this process if it is a child of the test.
fn role() -> Option<(String, usize)> {
    let role = std::env::var("LOCKSTEP_TEST_RANK").ok()?;
    let (name, rank) = role.split_once(' ').expect("name and rank");
    Some((name.to_owned(), rank.parse().expect("rank")))
}

fn exists(name: &str) -> bool {
    std::path::Path::new("/dev/shm").join(name).exists()
}

#[test]
fn processes_form_a_group() {
    let work = |name: &str, rank: usize| {
        let member = SharedMemory::create(name, rank, RANKS, 4_096).expect("join");
        assert!(!exists(name), "the file is gone once everybody is there");
        check_against_oracle(&Case::new(RANKS, 40_000, 3), vec![Box::new(member)]);
    };
    if let Some((name, rank)) = role() {
        return work(&name, rank);
    }
    let name = name("form");
    let children: Vec<_> = (1..RANKS)
        .map(|rank| child("processes_form_a_group", &name, rank))
        .collect();
    work(&name, 0);
    for mut child in children {
        assert!(child.wait().expect("wait").success());
    }
}

#[test]
fn a_killed_process_is_noticed() {
    let join = |name: &str, rank: usize| {
        let options = Options {
            timeout: Duration::from_millis(300),
            ..Options::default()
        };
        SharedMemory::join(name, rank, 2, &options).expect("join")
    };
    if let Some((name, rank)) = role() {
        let mut member = join(&name, rank);
        member.barrier().expect("barrier");
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("kill");
    }
    let name = name("killed");
    let mut child = child("a_killed_process_is_noticed", &name, 1);
    let mut member = join(&name, 0);
    // The child may need longer than the deadline to come here, but not to end.
    let first = member.barrier();
    assert!(!child.wait().expect("wait").success());
    let error = first
        .and_then(|()| member.barrier())
        .expect_err("the peer is dead");
    assert!(
        matches!(error, CollectiveError::Timeout { missing: 1, .. }),
        "{error}"
    );
}

#[test]
fn processes_that_wait_in_different_groups_are_found() {
    let work = |name: &str, rank: usize| {
        let mut world = SharedMemory::join(name, rank, 2, &Options::default()).expect("join");
        let mut group = world.split(0).expect("split");
        let (error, kinds) = match rank {
            0 => (world.barrier(), [Kind::Barrier, Kind::Broadcast]),
            _ => (
                group.broadcast(0, &mut [7]),
                [Kind::Broadcast, Kind::Barrier],
            ),
        };
        let error = error.expect_err("groups differ");
        let CollectiveError::Mismatch { ours, theirs, .. } = error else {
            panic!("rank {rank}: {error}");
        };
        assert_eq!([ours.kind, theirs.kind], kinds);
    };
    if let Some((name, rank)) = role() {
        return work(&name, rank);
    }
    let name = name("astray");
    let test = "processes_that_wait_in_different_groups_are_found";
    let mut child = child(test, &name, 1);
    work(&name, 0);
    assert!(child.wait().expect("wait").success());
}

#[test]
fn unfit_ranks_are_told_why() {
    let name = &name("unfit");
    let options = Options {
        join_timeout: Duration::from_millis(200),
        ..Options::default()
    };
    let join = |rank, size, options: &Options| {
        SharedMemory::join(name, rank, size, options)
            .expect_err("unfit")
            .to_string()
    };
    assert!(join(2, 2, &options).contains("rank 2 of 2"));
    assert!(join(0, 65, &options).contains("1 to 64"));
    assert!(join(0, 2, &options).contains("ranks [1] did not come"));
    assert!(!exists(name), "a failed start leaves nothing behind");
    for bad in ["", "a/b", "..", "ü", &"x".repeat(129)] {
        let error = SharedMemory::create(bad, 0, 1, 1)
            .expect_err("bad name")
            .to_string();
        assert!(error.contains("the group's name"), "{error}");
    }
}

/// A file that other users may read or write, or a link, is never a group's memory.
#[test]
fn files_that_are_not_private_are_not_joined() {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
    let name = &name("public");
    let path = std::path::Path::new("/dev/shm").join(name);
    let error = || {
        let joined = SharedMemory::create(name, 0, 1, 1);
        std::fs::remove_file(&path).expect("it is left as it was");
        joined.expect_err("it is not private").to_string()
    };
    for mode in [0o640, 0o604, 0o620, 0o602, 0o601] {
        let file = std::fs::File::create_new(&path).expect("create");
        let permissions = std::fs::Permissions::from_mode(mode);
        file.set_permissions(permissions).expect("set the mode");
        let error = error();
        assert!(error.contains("is not a private file"), "{mode:o}: {error}");
    }
    let target = path.with_extension("target");
    let mut options = std::fs::File::options();
    let private = options.write(true).create_new(true).mode(0o600);
    private.open(&target).expect("create");
    symlink(&target, &path).expect("link");
    let error = error();
    std::fs::remove_file(&target).expect("it is still there");
    // The error shows nothing of the file that the link leads to.
    assert!(!error.contains("bytes"), "{error}");
}

#[test]
fn ranks_that_disagree_are_told_why() {
    let name = &name("disagree");
    let path = std::path::Path::new("/dev/shm").join(name);
    let patient = Options {
        max_elements: 64,
        ..Options::default()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| SharedMemory::join(name, 0, 2, &patient));
        while !path.exists() {
            std::thread::yield_now();
        }
        let larger = Options {
            max_elements: 1 << 20,
            ..patient.clone()
        };
        let smaller = Options {
            max_elements: 32,
            ..patient.clone()
        };
        for (rank, options, reason) in [
            (1, &larger, "disagree"),
            (1, &smaller, "was made for 2 ranks with 64"),
            (0, &patient, "rank 0 is already in"),
        ] {
            let error = SharedMemory::join(name, rank, 2, options)
                .expect_err("unfit")
                .to_string();
            assert!(error.contains(reason), "{error}");
        }
        SharedMemory::join(name, 1, 2, &patient).expect("fits");
        first.join().expect("rank 0 panicked").expect("joined");
    });
}
