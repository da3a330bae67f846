//! Starts that fail.

use std::{fs, path::Path};

use lockstep_process::exit;
use lockstep_tests::{
    ports,
    processes::Role,
    server::{Options, Server},
    turns,
    wait::LIMIT,
};

use crate::options;

/// Copies the demo model to a new folder.
fn copy_of_model() -> tempfile::TempDir {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
    let copy = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(model).expect("the demo model").flatten() {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
    }
    copy
}

fn with_model(folder: &Path) -> Options {
    options().set("--model-path", folder.to_str().expect("UTF-8"))
}

/// Starts a server, and checks its exit code and the texts in its log.
async fn fails(options: Options, code: u8, said: &[&str]) {
    let server = Server::launch(options);
    assert_eq!(
        server.exit(LIMIT).await,
        i32::from(code),
        "{}",
        server.log()
    );
    let log = server.log();
    for text in said {
        assert!(log.contains(text), "{text:?} is not in:\n{log}");
    }
}

#[tokio::test]
async fn options_and_models_that_cannot_work_are_refused_before_anything_starts() {
    let _turn = turns::shared().await;
    let nowhere = with_model(Path::new("/no/such/folder"));
    fails(nowhere, exit::USAGE, &["--model-path", "/no/such/folder"]).await;
    fails(options().set("--tp-size", "3"), exit::USAGE, &["--tp-size"]).await;
    fails(
        options().set("--no-such-option", "1"),
        exit::USAGE,
        &["--no-such-option"],
    )
    .await;
    let speculative = options().set("--speculative-algorithm", "EAGLE");
    fails(speculative, exit::USAGE, &["--speculative-algorithm"]).await;
    let model = copy_of_model();
    fs::write(model.path().join("config.json"), "{").expect("written");
    fails(with_model(model.path()), exit::USAGE, &["config.json"]).await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let _turn = turns::shared().await;
    let port = ports::free();
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).expect("free");
    let (other, another) = (ports::free(), ports::free());
    for (ports, option) in [
        ([port, other, another], "--port"),
        ([other, port, another], "--grpc-port"),
        ([other, another, port], "--sglang-grpc-port"),
    ] {
        let server = Server::launch_on(options(), ports);
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::START_FAILED));
        for said in [
            format!("{option} 127.0.0.1:{port}"),
            format!("give {option} "),
        ] {
            assert!(server.log().contains(&said), "{said}:\n{}", server.log());
        }
    }
}

#[tokio::test]
async fn broken_weights_end_the_start_with_their_reason() {
    let _turn = turns::shared().await;
    let file = "model.safetensors";
    // The file is cut in the middle, has an invalid header, or gives a length beyond
    // its end.
    let breaks: [fn(Vec<u8>) -> Vec<u8>; 3] = [
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |mut bytes| {
            bytes[8..64].fill(b'x');
            bytes
        },
        |mut bytes| {
            bytes[..8].fill(0xff);
            bytes
        },
    ];
    for harm in breaks {
        let model = copy_of_model();
        let path = model.path().join(file);
        let whole = fs::read(&path).expect("weights");
        fs::write(&path, harm(whole)).expect("written");
        fails(with_model(model.path()), exit::START_FAILED, &[file]).await;
    }
    let model = copy_of_model();
    fs::write(model.path().join("tokenizer.json"), "{}").expect("written");
    fails(with_model(model.path()), exit::START_FAILED, &["tokenizer"]).await;
}

#[tokio::test]
async fn a_process_that_dies_during_the_start_ends_it() {
    for (role, name) in [
        (Role::Worker(1), "worker 1"),
        (Role::Scheduler, "scheduler"),
        (Role::TokenizerManager(0), "tokenizer-manager 0"),
    ] {
        let _turn = turns::shared().await;
        let server = Server::launch(options());
        server.process(role).await.kill();
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::START_FAILED));
        let said = format!("{name} was killed by signal 9");
        assert!(server.log().contains(&said), "{said}:\n{}", server.log());
    }
}

#[tokio::test]
async fn a_launcher_that_dies_during_the_start_leaves_nobody() {
    let _turn = turns::shared().await;
    let server = Server::launch(options());
    server.process(Role::Worker(0)).await;
    server.process(Role::Launcher).await.kill();
    assert_eq!(server.exit(LIMIT).await, -1);
}
