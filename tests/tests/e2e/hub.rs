//! Models that are given by name: from an empty cache to an answer.

use std::path::Path;
use std::process::{Command, Output};

use lockstep_loopback_hub::{Fault, LoopbackHub};
use lockstep_process::exit;
use lockstep_tests::server::{Options, Server};
use lockstep_tests::sse::{Event, Events};
use lockstep_tests::turns;
use lockstep_tests::wait::{LIMIT, until};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

const MODEL: &str = "lockstep/demo-7m";
const HEAD: &str = "lockstep/demo-7m-eagle3";
const WEIGHTS: &str = "model.safetensors";

/// Starts a hub with the demo model and its head. Also returns an empty cache folder.
fn scene() -> (LoopbackHub, TempDir) {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let hub = LoopbackHub::start();
    hub.add_folder(MODEL, &models.join("lockstep-demo-7m"));
    hub.add_folder(HEAD, &models.join("lockstep-demo-7m-eagle3"));
    (hub, tempfile::tempdir().expect("a folder"))
}

/// Environment variables that lead a program to the hub and the cache.
fn variables(hub: &LoopbackHub, home: &TempDir) -> [(&'static str, String); 3] {
    [
        ("HF_ENDPOINT", hub.endpoint()),
        ("HF_HOME", home.path().display().to_string()),
        ("NO_PROXY", "127.0.0.1".to_owned()),
    ]
}

fn served(hub: &LoopbackHub, home: &TempDir) -> Options {
    let options = crate::options().set("--model-path", MODEL);
    let all = variables(hub, home);
    all.iter()
        .fold(options, |options, (name, value)| options.env(name, value))
}

fn run(hub: &LoopbackHub, home: &TempDir, line: &str) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
    command
        .args(line.split_whitespace())
        .env("LOCKSTEP_DEVICE", "cpu")
        .envs(variables(hub, home));
    let output = command.output().expect("it runs");
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let text = text.concat();
    (output, text)
}

#[tokio::test]
async fn a_download_that_was_killed_goes_on_where_it_was_and_ends_in_an_answer() {
    let _turn = turns::shared().await;
    let (hub, home) = scene();
    let half = 1_500_000;
    hub.fault(WEIGHTS, Fault::StallAfter(half));
    let killed = Server::launch(served(&hub, &home));
    until("half of the weights", LIMIT, async || {
        let blobs = home.path().join("hub/models--lockstep--demo-7m/blobs");
        let mut blobs = std::fs::read_dir(blobs).ok()?.flatten();
        let part = blobs.find(|blob| blob.path().extension().is_some())?;
        (part.metadata().ok()?.len() == half as u64).then_some(())
    })
    .await;
    killed.signal(Signal::KILL).await;
    assert_eq!(killed.exit(LIMIT).await, -1);

    let server = Server::start(served(&hub, &home)).await;
    assert_eq!(hub.begins(WEIGHTS), [0, half as u64]);
    // Files that had arrived whole are not downloaded again.
    assert_eq!(hub.begins("tokenizer.json"), [0]);
    let request = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 3 to 12."}],
        "temperature": 0, "max_tokens": 64, "stream": true,
    });
    let response = server
        .client
        .post(server.url("/v1/chat/completions"))
        .json(&request);
    let mut events = Events::new(response.send().await.expect("an answer"));
    let mut text = String::new();
    while let Event::Json(event) = events.next().await {
        assert_eq!(event["model"], MODEL);
        text += event["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default();
    }
    assert!(text.contains("4, 5, 6"), "{text}");
}

#[tokio::test]
async fn names_are_pulled_listed_and_served_offline() {
    let _turn = turns::shared().await;
    let (hub, home) = scene();
    let (output, text) = run(&hub, &home, "models");
    assert!(
        output.status.success() && text.contains("No models in"),
        "{text}"
    );
    let (output, text) = run(&hub, &home, &format!("pull {MODEL}"));
    assert!(output.status.success(), "{text}");
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(Path::new(&folder).join(WEIGHTS).is_file(), "{text}");
    // The `config.json` of a head does not say enough, and a head has no tokenizer.
    let (output, text) = run(&hub, &home, &format!("pull {HEAD}"));
    assert_eq!(output.status.code(), Some(exit::USAGE.into()), "{text}");
    assert!(text.contains("--draft"), "{text}");
    let (output, text) = run(&hub, &home, &format!("pull --draft {HEAD}"));
    assert!(output.status.success(), "{text}");

    let (output, text) = run(&hub, &home, "models");
    assert!(output.status.success(), "{text}");
    let line = |name: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} is missing:\n{text}"))
    };
    assert!(
        line(MODEL).contains("main (") && line(MODEL).ends_with("yes"),
        "{text}"
    );
    assert!(line(HEAD).ends_with("as a draft, by EAGLE3"), "{text}");

    let asked = hub.seen().len();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
    command
        .envs(variables(&hub, &home))
        .env("HF_HUB_OFFLINE", "1")
        .env("LOCKSTEP_DEVICE", "cpu")
        .args([
            "generate",
            "Count from 3 to 12.",
            "--model-path",
            MODEL,
            "--speculative-algorithm",
            "EAGLE3",
            "--speculative-draft-model-path",
            HEAD,
        ]);
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("4, 5, 6"),
        "{text}{log}"
    );
    assert_eq!(hub.seen().len(), asked);
}

#[tokio::test]
async fn what_can_not_be_had_has_its_exit_code_in_all_commands() {
    let _turn = turns::shared().await;
    let (hub, home) = scene();
    let config = br#"{"architectures": ["OtherForCausalLM"]}"#;
    hub.add(
        "a/other",
        &[
            ("config.json", config),
            ("tokenizer.json", b"{}"),
            (WEIGHTS, b"weights"),
        ],
    );
    hub.add(
        "a/pickled",
        &[("config.json", b"{}"), ("pytorch_model.bin", b"weights")],
    );
    for (line, said) in [
        ("serve a/nothing", "no model at"),
        ("serve a/other", "OtherForCausalLM"),
        (
            "serve ./modls/demo",
            "no such folder, for there is no ./modls",
        ),
        ("generate hi --model-path modls/demo/", "it ends in /"),
        // `src` is a folder of this crate.
        ("serve src/demo", "there is a folder src"),
        (
            "serve --speculative-draft-model-path /no-models/head",
            "--speculative-draft-model-path /no-models/head: there is no such folder",
        ),
        ("serve a/pickled", "pytorch_model.bin"),
        ("generate hi --model-path a/nothing", "no model at"),
        (
            "pack --weight-cache w --model-path a/other",
            "OtherForCausalLM",
        ),
        ("bench offline --model-path a/other", "OtherForCausalLM"),
        ("bench kernels --model-path a/nothing", "no model at"),
        ("serve --revision v1", "--revision"),
        ("serve a/other --revision ../x", "../x"),
        ("pull gpt2", "OWNER/NAME"),
    ] {
        let (output, text) = run(&hub, &home, line);
        assert_eq!(
            output.status.code(),
            Some(exit::USAGE.into()),
            "{line}: {text}"
        );
        assert!(text.contains(said), "{line}: {text}");
    }
    assert!(hub.begins(WEIGHTS).is_empty());
    hub.fault(
        MODEL,
        Fault::Status(429, vec![("retry-after", "999".into())]),
    );
    let (output, text) = run(&hub, &home, &format!("serve {MODEL}"));
    assert_eq!(
        output.status.code(),
        Some(exit::START_FAILED.into()),
        "{text}"
    );
    assert!(text.contains("429"), "{text}");
    let folder = format!("there is none at {MODEL}");
    assert!(text.contains(&folder), "{text}");
}

/// The hub sends a byte now and then. The start ends by its own time limit and names
/// that limit.
#[tokio::test]
async fn a_start_does_not_wait_for_a_hub_that_drips() {
    let _turn = turns::shared().await;
    let (hub, home) = scene();
    hub.fault(MODEL, Fault::Drip);
    let (output, text) = run(&hub, &home, &format!("serve {MODEL} --startup-timeout 1"));
    assert_eq!(
        output.status.code(),
        Some(exit::START_FAILED.into()),
        "{text}"
    );
    for expected in [
        "the hub's list of files",
        "within 1 s (--startup-timeout)",
        "lockstep pull",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}
