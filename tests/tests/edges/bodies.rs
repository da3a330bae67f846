//! Unfinished bodies and messages that need more memory than the server has for
//! requests.

use lockstep_proto::pb::lockstep::GetModelInfoRequest;
use lockstep_tests::{
    body::{COUNTED, completion, counting},
    flood, grpc, h2,
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use serde_json::json;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::one_rank;

const REASON: &str = "lockstep_connections_closed_total";

/// Number of requests that a port refused because they exceeded the memory budget.
async fn over_budget(server: &Server, port: &str) -> f64 {
    let metrics = server.metrics().await;
    metrics.sum_with(REASON, &[("port", port), ("reason", "over_budget")])
}

#[tokio::test]
async fn one_address_leaves_memory_for_others() {
    let _turn = turns::shared().await;
    let options = one_rank()
        .set("--max-request-memory", "4194304")
        .set("--max-body-bytes", "1048576")
        .set("--min-body-rate", "0");
    let server = Server::start(options).await;
    let large = completion("a".repeat(250_000), &json!({"max_tokens": 1}));
    let is_taken = async || {
        let answer = server.post("/v1/completions", &large).await;
        assert_eq!(answer.status, 400, "too many tokens: {}", answer.text);
    };
    let calls = |path: &str, message: &[u8]| {
        let calls = (1..200)
            .step_by(2)
            .flat_map(|stream| [h2::headers(stream, path), h2::data(stream, message)].concat());
        h2::hello().into_iter().chain(calls).collect::<Vec<_>>()
    };
    // Unfinished messages of 128 KiB, and of 4 KiB to a service that needs no key.
    let generate = calls("/lockstep.v1.Inference/Generate", &[0, 0, 2, 0, 0, 7]);
    let health = calls("/grpc.health.v1.Health/Check", &[0, 0, 0, 16, 0, 7]);
    let mut held = vec![flood::begin_from("127.0.0.2", server.grpc_port, &generate).await];
    until("refusals", LIMIT, async || {
        (over_budget(&server, "grpc").await >= 80.0).then_some(())
    })
    .await;
    is_taken().await;
    drop(held.pop());
    for connection in 0..12 {
        let address = ["127.0.0.2", "127.0.0.3"][connection % 2];
        held.push(flood::begin_from(address, server.grpc_port, &health).await);
    }
    until("refusals", LIMIT, async || {
        (over_budget(&server, "grpc").await >= 1_000.0).then_some(())
    })
    .await;
    is_taken().await;
    let mut client = server.inference().await;
    let info = client.get_model_info(GetModelInfoRequest {}).await;
    info.expect("lockstep.v1.Inference answers");
    // A kubelet sends this call.
    let channel = grpc::connect(server.grpc_port).await.expect("connected");
    let health = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await;
    health.expect("health is answered");
}

#[tokio::test]
async fn unfinished_bodies_are_refused_beyond_the_budget() {
    let _turn = turns::shared().await;
    let options = one_rank()
        .set("--max-request-memory", "2097152")
        .set("--max-body-bytes", "524288")
        .set("--min-body-rate", "0");
    let server = Server::start(options).await;
    let ports = [
        ("grpc", server.grpc_port, "/lockstep.v1.Inference/Generate"),
        (
            "sglang",
            server.sglang_port,
            "/sglang.grpc.scheduler.SglangScheduler/Generate",
        ),
    ];
    let mut held = Vec::new();
    for (name, port, path) in ports {
        let mut calls = h2::hello();
        for stream in (1..64).step_by(2) {
            calls.extend(h2::headers(stream, path));
            // The call announces a message of 128 KiB and sends one byte.
            calls.extend(h2::data(stream, &[0, 0, 2, 0, 0, 7]));
        }
        held.push(flood::begin(port, &calls).await);
        until("refusals", LIMIT, async || {
            (over_budget(&server, name).await >= 10.0).then_some(())
        })
        .await;
    }
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 500000\r\n\r\n";
    // The memory left for large requests is less than one of them needs.
    let begin = [head.as_bytes(), &[b' '; 100_000]].concat();
    for _ in 0..8 {
        held.push(flood::begin(server.port, &begin).await);
    }
    until("refusals", LIMIT, async || {
        (over_budget(&server, "http").await >= 8.0).then_some(())
    })
    .await;
    // A large request must wait its turn, but a small one is served.
    let large = completion("a".repeat(250_000), &json!({"max_tokens": 1}));
    let refused = until("a refusal", LIMIT, async || {
        // The server may refuse the request before the request is sent whole. The
        // client can take this for a broken connection.
        server.try_post("/v1/completions", &large).await.ok()
    })
    .await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(refused.error()["code"], "rate_limit_exceeded");
    assert!(refused.headers.contains_key("retry-after"));
    let answer = server
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    let mut client = server.inference().await;
    let info = client.get_model_info(GetModelInfoRequest {}).await;
    info.expect("lockstep.v1.Inference answers");
    drop(held);
    until("memory again", LIMIT, async || {
        let answer = server.try_post("/v1/completions", &large).await.ok()?;
        (answer.status != 429).then_some(())
    })
    .await;
}
