//! DP ranks with requests of their own, in real processes.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_process::exit;
use lockstep_tests::{
    MODEL,
    body::{COUNTED, counting},
    http::Answer,
    server::{Options, Server},
    turns,
    wait::LIMIT,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    load::{Questions, wave, well},
    options,
    ranks::{data_parallel, drafting, taking_turns},
    weights::other_weights,
};

const PATH: &str = "/v1/chat/completions";
/// Folder of the demo model's drafter, which is served here as the model itself.
const SMALL_MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/lockstep-demo-1m-draft"
);
/// The step in which a planted fault strikes. A long request runs at that time.
const STEP: u64 = 60;

/// Options for ranks that form DP ranks, with another draft depth in every step.
fn ranks(tp: usize, dp: usize, folder: &tempfile::TempDir) -> Options {
    let options = drafting(data_parallel(options(), (tp, dp)));
    taking_turns(options, &[0, 1, 2, 3], folder.path())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn content(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]["content"]
}

async fn ask_for_long(server: &Server) -> Answer {
    let fields = json!({"max_tokens": 1900, "ignore_eos": true, "data_parallel_rank": 0});
    server.post(PATH, &counting(&fields)).await
}

#[tokio::test]
async fn requests_are_answered_on_every_dp_rank() {
    let _turn = turns::shared().await;
    let folder = folder();
    for (tp, dp) in [(2, 2), (4, 2)] {
        let server = Server::start(ranks(tp, dp, &folder)).await;
        let sampled = json!({"temperature": 0.9, "seed": 7, "max_tokens": 60, "logprobs": true});
        let mut texts = Vec::new();
        for rank in [Some(0), Some(1), None] {
            let mut fields = json!({"data_parallel_rank": rank});
            let answer = server.ok(PATH, &counting(&fields)).await;
            assert_eq!(content(&answer), COUNTED, "{tp} ranks, {rank:?}");
            let own = fields.as_object_mut().expect("an object");
            own.extend(sampled.as_object().expect("an object").clone());
            texts.push(server.ok(PATH, &counting(&fields)).await["choices"].clone());
        }
        // The answer is the same bit for bit on every DP rank.
        assert_eq!(texts[0], texts[1]);
        assert_eq!(texts[0], texts[2]);
        // Now all requests at once.
        let body = counting(&json!({}));
        let all = futures::future::join_all((0..12).map(|_| server.ok(PATH, &body))).await;
        assert!(all.iter().all(|answer| content(answer) == COUNTED));
        let beyond = counting(&json!({"data_parallel_rank": dp}));
        let refused = server.post(PATH, &beyond).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert_eq!(refused.error()["param"], "data_parallel_rank");
        server.signal(Signal::TERM).await;
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
    }
}

/// Returns the files in which ranks have written their last steps, sorted by rank.
fn left_steps(server: &Server) -> Vec<PathBuf> {
    let files = fs::read_dir(server.folder()).expect("the folder").flatten();
    let files = files.map(|entry| entry.path());
    let steps = |path: &PathBuf| path.to_string_lossy().contains("lockstep-steps-");
    let mut files: Vec<_> = files.filter(steps).collect();
    files.sort();
    files
}

/// A mistake of rank 1 is found in the same step and ends the engine. The log names
/// rank 1.
#[tokio::test]
async fn ranks_that_differ_end_within_a_step_and_leave_their_last_ones() {
    let _turn = turns::shared().await;
    let folder = folder();
    for (kind, (tp, dp), says) in [
        ("depth", (2, 2), "diverged"),
        ("depth", (4, 2), "diverged"),
        ("stale-row", (2, 2), "diverged"),
        ("stale-row", (4, 2), "diverged"),
        ("world-digest", (2, 2), "diverged"),
        ("group-digest", (4, 2), "group digest"),
        ("skipped-exchange", (2, 2), "diverged"),
        ("skipped-exchange", (4, 2), "diverged"),
    ] {
        let fault = format!("1:{STEP}:{kind}");
        let options = ranks(tp, dp, &folder).env("TEST_FAULT_IN_RANK", &fault);
        let server = Server::start(options).await;
        let answer = ask_for_long(&server).await;
        assert_eq!(answer.status, 503, "{kind}: {}", answer.text);
        assert_ne!(server.exit(LIMIT).await, i32::from(exit::OK), "{kind}");
        let log = server.log();
        // The line names the faulty rank and the other rank that has noticed first.
        let others = ["rank 0", "rank 2", "rank 3"];
        let both =
            |line: &str| line.contains("rank 1") && others.iter().any(|other| line.contains(other));
        let named = |line: &str| line.contains(says) && both(line);
        let line = log.lines().find(|line| named(line));
        let line = line.unwrap_or_else(|| panic!("{kind}: {log}"));
        if kind == "group-digest" {
            let digests: BTreeSet<_> = line.split("group digest ").skip(1).collect();
            assert_eq!(digests.len(), 2, "{line}");
        }
        // Every rank has written its steps to a file, up to that step.
        let files = left_steps(&server);
        assert_eq!(files.len(), tp, "{kind}: {files:?}\n{log}");
        for file in files {
            let text = fs::read_to_string(&file).expect("steps");
            let last = text.lines().last().expect("a step");
            let last: Value = serde_json::from_str(last).expect("JSON");
            let step = last["step"].as_u64().expect("a number");
            // A rank that skips an exchange may meet the other ranks only in the next
            // step.
            let last_step = STEP + u64::from(kind == "skipped-exchange");
            assert!((STEP - 1..=last_step).contains(&step), "{kind}: {last}");
        }
    }
}

/// The other rank waits for a row that arrives late.
#[tokio::test]
async fn a_late_rank_changes_nothing() {
    let _turn = turns::shared().await;
    let folder = folder();
    let options = ranks(2, 2, &folder).env("TEST_FAULT_IN_RANK", "1:5:late-row");
    let server = Server::start(options).await;
    let begun = Instant::now();
    let answer = server.ok(PATH, &counting(&json!({}))).await;
    assert_eq!(content(&answer), COUNTED);
    assert!(begun.elapsed() >= Duration::from_secs(1), "it was not late");
}

/// A killed rank is noticed at once, a stopped rank by the watchdog.
#[tokio::test]
async fn a_rank_that_stops_or_dies_fails_every_request() {
    let _turn = turns::alone().await;
    let folder = folder();
    for (kind, says) in [("killed", "rank 1"), ("stopped", "--watchdog-timeout")] {
        let fault = format!("1:{STEP}:{kind}");
        let options = ranks(2, 2, &folder)
            .set("--watchdog-timeout", "2")
            .set("--ping-timeout", "0")
            .env("TEST_FAULT_IN_RANK", &fault);
        let server = Server::start(options).await;
        let (first, second) = tokio::join!(ask_for_long(&server), async {
            let fields = json!({"max_tokens": 1900, "ignore_eos": true, "data_parallel_rank": 1});
            server.post(PATH, &counting(&fields)).await
        });
        for answer in [first, second] {
            assert_eq!(answer.status, 503, "{kind}: {}", answer.text);
        }
        assert_ne!(server.exit(LIMIT).await, i32::from(exit::OK), "{kind}");
        assert!(server.log().contains(says), "{kind}: {}", server.log());
        assert_eq!(
            left_steps(&server),
            Vec::<PathBuf>::new(),
            "nobody differed"
        );
    }
}

/// Corpora for the drafter and new weights reach all DP ranks.
#[tokio::test]
async fn corpora_and_weights_reach_every_dp_rank() {
    let _turn = turns::shared().await;
    let updates = folder();
    let updates = updates.path().canonicalize().expect("real");
    other_weights(&updates.join("other"));
    let options = drafting(data_parallel(options(), (2, 2)))
        .flag("--speculative-adaptive=false")
        .set("--weight-update-dir", updates.to_str().expect("UTF-8"));
    let server = Server::start(options).await;
    let ask = async |rank: u32| {
        let fields = json!({"data_parallel_rank": rank, "max_tokens": 40});
        let answer = server.ok(PATH, &counting(&fields)).await;
        let accepted = answer["usage"]["speculative"]["accepted_tokens"].as_u64();
        (content(&answer).clone(), accepted)
    };
    let corpus = json!({"name": "numbers", "text": COUNTED});
    server.ok("/ngram/corpus", &corpus).await;
    for rank in [0, 1] {
        // This DP rank has not served the text yet: it knows the text from the corpus.
        let (text, accepted) = ask(rank).await;
        assert_eq!(text, COUNTED);
        assert!(accepted > Some(10), "DP rank {rank}");
    }
    let update = json!({"model_path": "other"});
    server.ok("/update_weights_from_disk", &update).await;
    let [(first, _), (second, _)] = [ask(0).await, ask(1).await];
    assert_ne!(first, COUNTED, "other weights");
    assert_eq!(first, second);
}

/// Random load on a small model until `TEST_STEPS` steps have run (default: 1,000,000).
/// Half of the steps run with overlap. In turn all DP ranks are busy, only one is, and
/// few requests run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs for many minutes"]
async fn dp_ranks_stay_well_for_many_steps() {
    let _turn = turns::alone().await;
    let folder = folder();
    let steps = std::env::var("TEST_STEPS").ok();
    let steps: f64 = steps.map_or(1e6, |steps| steps.parse().expect("a number"));
    for overlap in [true, false] {
        // The cache is smaller than the need of the admitted requests.
        let options = ranks(2, 2, &folder)
            .set("--model-path", SMALL_MODEL)
            .set("--served-model-name", MODEL)
            .set("--context-length", "512")
            .set("--max-total-tokens", "1024");
        let options = match overlap {
            true => options,
            false => options.flag("--disable-overlap-schedule"),
        };
        let server = Arc::new(Server::start(options).await);
        let questions = Arc::new(Questions::ask(&server).await);
        for turn in 0.. {
            let (clients, place): (u64, &dyn Fn(u64) -> Option<u32>) = match turn % 4 {
                0 if turn % 32 == 0 => (64, &|_| None),
                0 => (8, &|_| None),
                1 => (8, &|_| Some(0)),
                2 => (6, &|seed| Some((seed % 2) as u32)),
                _ => (5, &|_| Some(1)),
            };
            let seeds = turn * 64..turn * 64 + clients;
            let (answered, left) = wave(&server, &questions, seeds, place).await;
            assert!(answered > 0 && left > 0, "{answered} answered, {left} left");
            well(&server).await;
            let metrics = server.metrics().await;
            let done = metrics.value("lockstep_step_seconds_count");
            let retracted = metrics.value("lockstep_retractions_total");
            let switches = metrics.value("lockstep_spec_depth_switches_total");
            println!(
                "overlap {overlap}: {done} steps, {switches} switches, {retracted} retractions"
            );
            if done >= steps / 2.0 {
                assert!(retracted > 0.0 && switches > done / 20.0);
                break;
            }
        }
        server.signal(Signal::TERM).await;
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
    }
}
