//! A server whose depth follows its work, and obeys an operator.

use lockstep_tests::{
    body::{COUNTED, counting},
    metrics::Metrics,
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};

use crate::options;

const PATH: &str = "/speculation";

async fn shown(server: &Server) -> Value {
    server.get(PATH).await.ok()
}

/// Keeps the server at work until `look` finds what it waits for.
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

/// Steps that ran at `depth`.
fn steps(shown: &Value, depth: u64) -> u64 {
    let depths = shown["by_depth"].as_array().expect("a list");
    let of = depths.iter().find(|of| of["depth"] == depth);
    of.and_then(|of| of["steps"].as_u64()).unwrap_or(0)
}

#[tokio::test]
async fn the_depth_changes_by_itself_and_by_an_operators_hand() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("adaptive.json");
    // What is counted is foreseen, so that depth 1 does not last.
    let content = json!({
        "strategy": "ema", "update_interval": 1, "warmup_batches": 0, "ema_alpha": 1,
        "1": {"candidate_steps": [1, 3], "up_hysteresis": -0.5},
    });
    std::fs::write(&file, content.to_string()).expect("written");
    let config = folder.path().join("config.toml");
    let content = "speculative-algorithm = 'EAGLE3'\nspeculative-num-steps = 1\n\
                   speculative-adaptive = true\nspeculative-adaptive-config = 'adaptive.json'\n";
    std::fs::write(&config, content).expect("written");
    let options = options().set("--config", &config.display().to_string());
    let server = Server::start(options).await;

    let switched = working(&server, "another depth", |shown| {
        let both = steps(shown, 1) > 0 && steps(shown, 3) > 0;
        (both && shown["switches"].as_u64() > Some(0)).then(|| shown.clone())
    })
    .await;
    assert_eq!(switched["policy"], "ema");
    assert_eq!(switched["range"], Value::Null);

    let pinned = server.ok(PATH, &json!({"depth": 1})).await;
    assert_eq!(pinned["range"], json!({"min_depth": 1, "max_depth": 1}));
    // What was decided before the pin still runs; then nothing but depth 1 does.
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
