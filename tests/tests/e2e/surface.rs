//! The server's surface on the machine: ports, sockets, shared memory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use lockstep_tests::{processes::Role, server::Server, sockets, turns};

use crate::{options, shared};

#[tokio::test]
async fn only_public_ports_listen() {
    let _turn = turns::shared().await;
    let server = shared().await;
    let pids: Vec<_> = server
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect();
    assert_eq!(pids.len(), 5);
    let public = BTreeSet::from([server.port, server.grpc_port, server.sglang_port]);
    assert_eq!(sockets::listening(&pids), public);
    assert_eq!(sockets::datagram(&pids), BTreeSet::new());
}

#[tokio::test]
async fn internal_sockets_and_files_are_the_owners_alone() {
    let _turn = turns::shared().await;
    let server = shared().await;
    let folder = server.run_dir();
    let mode = |path: &std::path::Path| fs::metadata(path).expect("there").mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut found = 0;
    for entry in fs::read_dir(&folder).expect("the run directory").flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_socket() {
            found += 1;
            assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
        } else if kind.is_file() {
            assert_eq!(mode(&entry.path()) & 0o077, 0, "{entry:?}");
        }
    }
    // Sockets for control, the tokenizer-manager and the workers.
    assert!(found >= 3, "{found} sockets");
}

#[tokio::test]
async fn shared_memory_has_no_name_once_the_ranks_have_met() {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    for rank in [0, 1] {
        let worker = server.process(Role::Worker(rank)).await;
        let maps = fs::read_to_string(format!("/proc/{}/maps", worker.pid)).expect("maps");
        let shared: Vec<_> = maps
            .lines()
            .filter(|line| line.contains("/dev/shm/"))
            .collect();
        assert!(!shared.is_empty(), "ranks meet in shared memory");
        for line in shared {
            assert!(line.ends_with("(deleted)"), "{line}");
        }
    }
}
