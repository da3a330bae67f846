//! A server whose depth follows its load and obeys an operator.

use std::path::Path;
use std::process::Command;

use lockstep_tests::{
    body::{COUNTED, counting},
    metrics::Metrics,
    processes::Role,
    server::{Options, Server},
    turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};

use crate::options;

const PATH: &str = "/speculation";

async fn shown(server: &Server) -> Value {
    server.get(PATH).await.ok()
}

/// Keeps the server at work until `look` returns something.
async fn working<T>(server: &Server, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
    until(what, LIMIT, async || {
        let answer = server
            .ok("/v1/chat/completions", &counting(&json!({})))
            .await;
        assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
        look(&shown(server).await)
    })
    .await
}

/// Returns the number of steps that ran at `depth`.
fn steps(shown: &Value, depth: u64) -> u64 {
    let depths = shown["by_depth"].as_array().expect("a list");
    let of = depths.iter().find(|of| of["depth"] == depth);
    of.and_then(|of| of["steps"].as_u64()).unwrap_or(0)
}

/// Returns options with two depths, 1 and 3. The server starts at 1 and soon chooses 3,
/// since drafts of counting are good. `folder` holds the files of options.
fn two_depths(folder: &Path) -> Options {
    let content = json!({
        "strategy": "ema", "update_interval": 1, "warmup_batches": 0, "ema_alpha": 1,
        "1": {"candidate_steps": [1, 3], "up_hysteresis": -0.5},
    });
    std::fs::write(folder.join("adaptive.json"), content.to_string()).expect("written");
    let config = folder.join("config.toml");
    let content = "speculative-algorithm = 'EAGLE3'\nspeculative-num-steps = 1\n\
                   speculative-adaptive = true\nspeculative-adaptive-config = 'adaptive.json'\n";
    std::fs::write(&config, content).expect("written");
    options().set("--config", &config.display().to_string())
}

/// An engine that is started anew obeys from its first step on the pin of its
/// predecessor.
#[tokio::test]
async fn a_pin_outlives_a_restart() {
    for (pin, range, depths) in [
        (
            json!({"depth": 3}),
            json!({"min_depth": 3, "max_depth": 3}),
            [false, true],
        ),
        (
            json!({"max_depth": 1}),
            json!({"min_depth": 0, "max_depth": 1}),
            [true, false],
        ),
    ] {
        let _turn = turns::shared().await;
        let folder = tempfile::tempdir().expect("a folder");
        let options = two_depths(folder.path()).set("--max-restarts", "1");
        let server = Server::start(options).await;
        assert_eq!(server.ok(PATH, &pin).await["range"], range);
        let scheduler = server.process(Role::Scheduler).await;
        scheduler.kill();
        until("another scheduler", LIMIT, async || {
            let another = server.process(Role::Scheduler).await;
            (another != scheduler).then_some(())
        })
        .await;
        server.ready().await;
        let shown = working(&server, "steps", |shown| {
            (steps(shown, 1) + steps(shown, 3) > 5).then(|| shown.clone())
        })
        .await;
        assert_eq!(shown["range"], range);
        assert_eq!(
            [1, 3].map(|depth| steps(&shown, depth) > 0),
            depths,
            "{shown}"
        );
        assert_eq!(
            shown["switches"].as_u64().map(|n| n <= 1),
            Some(true),
            "{shown}"
        );
    }
}

/// The error on a server that drafts nothing advises how to start it, and the advice
/// works.
#[tokio::test]
async fn without_an_algorithm_the_advice_can_be_followed() {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--speculative-algorithm", "none")).await;
    let refused = server.post(PATH, &json!({"depth": 1})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    let advice = "--speculative-algorithm NAME --speculative-adaptive";
    for part in [advice, "`lockstep serve --help`"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    let runs = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
        command.args(line.split(' ')).env("LOCKSTEP_DEVICE", "cpu");
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // Follows the advice as a reader would.
    assert!(runs("serve --help").contains("NGRAM the texts seen so far"));
    runs(&format!("config {}", advice.replace("NAME", "NGRAM")));
}

#[tokio::test]
async fn the_depth_changes_by_itself_and_by_an_operators_hand() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(two_depths(folder.path())).await;

    let switched = working(&server, "another depth", |shown| {
        let both = steps(shown, 1) > 0 && steps(shown, 3) > 0;
        (both && shown["switches"].as_u64() > Some(0)).then(|| shown.clone())
    })
    .await;
    assert_eq!(switched["policy"], "ema");
    assert_eq!(switched["range"], Value::Null);

    let pinned = server.ok(PATH, &json!({"depth": 1})).await;
    assert_eq!(pinned["range"], json!({"min_depth": 1, "max_depth": 1}));
    // Steps decided before the pin still run; after them only depth 1 runs.
    let before = working(&server, "the pinned depth", |shown| {
        (shown["depth"] == 1).then(|| shown.clone())
    })
    .await;
    let after = working(&server, "work at the pinned depth", |shown| {
        (steps(shown, 1) > steps(&before, 1) + 5).then(|| shown.clone())
    })
    .await;
    assert_eq!(steps(&after, 3), steps(&before, 3), "{after}");
    assert_eq!(after["switches"], before["switches"], "{after}");

    server.ok(PATH, &json!({})).await;
    working(&server, "depth 3 again", |shown| {
        (steps(shown, 3) > steps(&after, 3)).then_some(())
    })
    .await;
    let metrics = Metrics::parse(&server.get("/metrics").await.text);
    assert!(metrics.value("lockstep_spec_depth_switches_total") >= 3.0);
    assert!(metrics.sum("lockstep_spec_depth_seconds_total") > 0.0);

    let refused = server.post(PATH, &json!({"depth": 2})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
}
