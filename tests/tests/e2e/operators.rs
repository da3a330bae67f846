//! Questions and commands of operators and load balancers.

use lockstep_tests::{MODEL, body::chat, server::Server, sse::Event, turns, wait};
use serde_json::json;

use crate::{options, shared};

#[tokio::test]
async fn health_runs_steps() {
    let (_turn, server) = (turns::shared().await, shared().await);
    assert_eq!(server.get("/health").await.status, 200);
    let before = server.metrics().await.value("lockstep_steps_total");
    assert_eq!(server.get("/health_generate").await.status, 200);
    let after = server.metrics().await.value("lockstep_steps_total");
    assert!(after > before, "{before} {after}");
}

#[tokio::test]
async fn the_server_describes_itself() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for path in ["/model_info", "/get_model_info"] {
        let model = server.get(path).await.ok();
        assert_eq!(model["served_model_name"], MODEL);
        assert_eq!(model["max_model_len"], 2048);
        assert_eq!(model["is_generation"], true);
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = server.get(path).await.ok();
        assert_eq!(info["config"]["parallel"]["tp_size"], 2);
        assert_eq!(info["load"]["leaked_pages"], 0);
        assert!(
            info["config_hash"]
                .as_str()
                .is_some_and(|hash| hash.len() >= 32)
        );
    }
    let index = server.get("/").await;
    assert_eq!(index.status, 200);
    assert!(index.text.contains(MODEL));
}

#[tokio::test]
async fn metrics_count_front_and_engine() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let names = [
        "lockstep_requests_total",
        "lockstep_generated_tokens_total",
        "lockstep_prompt_tokens_total",
        "lockstep_steps_total",
        "lockstep_step_seconds_count",
        "lockstep_front_generated_tokens_total",
        "lockstep_http_requests_total",
        "lockstep_time_to_first_token_seconds_count",
        "lockstep_request_latency_seconds_count",
    ];
    let before = server.metrics().await;
    server
        .ok(
            "/v1/chat/completions",
            &chat("Hello.", &json!({"max_tokens": 9})),
        )
        .await;
    let after = server.metrics().await;
    for name in names {
        assert!(after.sum(name) > before.sum(name), "{name}");
    }
    for name in [
        "lockstep_num_requests_running",
        "lockstep_num_requests_waiting",
        "lockstep_kv_tokens_used",
        "lockstep_kv_tokens_cached",
        "lockstep_requests_aborted_total",
        "lockstep_retractions_total",
    ] {
        assert!(after.value(name) >= 0.0, "{name}");
    }
    assert!(after.value("lockstep_kv_tokens_total") >= 32768.0);
    assert_eq!(after.value("lockstep_kv_leaked_pages"), 0.0);
    assert_eq!(after.value("lockstep_scheduler_up"), 1.0);
}

#[tokio::test]
async fn a_request_can_be_aborted_by_its_id() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let unknown = server
        .ok("/abort_request", &json!({"rid": "chatcmpl-none"}))
        .await;
    assert_eq!(unknown["aborted"], 0);
    let body = chat(
        "Hello.",
        &json!({"max_tokens": 1900, "ignore_eos": true, "stream": true}),
    );
    // Abort by the id of the request, and by the id of the answer, which contains the
    // first.
    for prefix in ["chatcmpl-", ""] {
        let mut events = server.stream("/v1/chat/completions", &body).await;
        let Event::Json(first) = events.next().await else {
            panic!("no chunk")
        };
        let id = first["id"].as_str().expect("an id");
        let rid = id.strip_prefix(prefix).expect("an answer's id");
        let aborted = server.ok("/abort_request", &json!({"rid": rid})).await;
        assert_eq!(aborted["aborted"], 1, "{rid}");
        events.aborted().await;
    }
}

#[tokio::test]
async fn the_cache_can_be_emptied_when_nothing_runs() {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    let body = chat(
        &"Say it again. ".repeat(30),
        &json!({"max_tokens": 1500, "ignore_eos": true, "stream": true}),
    );
    let mut running = server.stream("/v1/chat/completions", &body).await;
    running.next().await;
    let refused = server.post("/flush_cache", &json!({})).await;
    assert_eq!(refused.status, 400);
    refused.error();
    drop(running);
    let flushed = wait::until("an idle server", wait::LIMIT, async || {
        let answer = server.post("/flush_cache", &json!({})).await;
        (answer.status == 200).then(|| answer.json())
    })
    .await;
    assert!(flushed["tokens"].as_u64() > Some(0), "{flushed}");
    let metrics = server.metrics().await;
    for name in [
        "lockstep_kv_tokens_used",
        "lockstep_kv_tokens_cached",
        "lockstep_kv_leaked_pages",
    ] {
        assert_eq!(metrics.value(name), 0.0, "{name}");
    }
}
