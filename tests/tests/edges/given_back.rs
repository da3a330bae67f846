//! The system gets memory back after the requests that took it.

use lockstep_tests::{
    body::chat,
    flood,
    processes::{Process, Role},
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use serde_json::json;

use crate::one_rank;

/// Bytes that a process may keep after requests, for caches of the allocator and the
/// server.
const KEPT: usize = 32 << 20;

/// Waits until the process holds no more than `before` + [`KEPT`] bytes.
async fn given_back(process: Process, before: usize) {
    until("memory given back", LIMIT, async || {
        (process.memory("VmRSS") < before + KEPT).then_some(())
    })
    .await;
}

#[tokio::test]
async fn bodies_are_given_back() {
    let _turn = turns::shared().await;
    // One address may hold half of this memory.
    let options = one_rank().set("--max-request-memory", "1073741824");
    let server = Server::start(options.set("--min-body-rate", "0")).await;
    let front = server.process(Role::TokenizerManager(0)).await;
    let before = front.memory("VmRSS");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 16000000\r\n\r\n";
    let most = [head.as_bytes(), &vec![b' '; 15_000_000]].concat();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(flood::begin(server.port, &most).await);
    }
    until("bodies held", LIMIT, async || {
        (front.memory("VmRSS") > before + (250 << 20)).then_some(())
    })
    .await;
    drop(held);
    given_back(front, before).await;
}

#[tokio::test]
async fn log_probabilities_are_given_back() {
    let _turn = turns::shared().await;
    let server = Server::start(one_rank()).await;
    let front = server.process(Role::TokenizerManager(0)).await;
    let before = front.memory("VmRSS");
    let many = json!({"n": 64, "max_tokens": 200, "ignore_eos": true, "logprobs": true, "top_logprobs": 20});
    let bodies: Vec<_> = (0..2).map(|_| chat("Hello.", &many)).collect();
    let path = "/v1/chat/completions";
    let answers = bodies.iter().map(|body| server.ok(path, body));
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer["choices"].as_array().map(Vec::len), Some(64));
    }
    given_back(front, before).await;
}
