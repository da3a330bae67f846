//! Connections that begin a request, or a protocol, and do not go on.

use lockstep_tests::{
    flood, http,
    raw::connect,
    server::{Options, Server},
    turns,
    wait::{LIMIT, until, within},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::one_rank;

/// Time limits of a second, too short for real use.
fn impatient() -> Options {
    one_rank()
        .set("--first-byte-timeout", "1")
        .set("--request-head-timeout", "1")
        .set("--request-body-timeout", "1")
        .set("--keep-alive-timeout", "1")
}

#[tokio::test]
async fn what_is_begun_and_not_ended_is_closed() {
    let _turn = turns::shared().await;
    let server = Server::start(impatient()).await;
    let all = [server.port, server.grpc_port, server.sglang_port];
    let mut begun = Vec::new();
    for port in all {
        for preface in ["P", "PRI * HTTP/2.0\r\n\r\nSM"] {
            begun.push(flood::begin(port, preface.as_bytes()).await);
        }
        // A connection without streams is idle.
        begun.push(flood::begin(port, &lockstep_tests::h2::hello()).await);
    }
    for head in ["GET", "GET /health HTTP/1.1\r\nhost: x\r\n"] {
        begun.push(flood::begin(server.port, head.as_bytes()).await);
    }
    // This connection is idle after its first answer.
    let mut idle = connect(server.port).await;
    let request = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n";
    idle.write_all(request).await.expect("sent");
    let mut first = [0];
    idle.read_exact(&mut first).await.expect("answered");
    begun.push(idle);
    within("an end to all of them", LIMIT, flood::closed(begun)).await;
    until("the counts", LIMIT, async || {
        let metrics = server.metrics().await;
        let closed = |port, reason| {
            let name = "lockstep_connections_closed_total";
            metrics.sum_with(name, &[("port", port), ("reason", reason)])
        };
        let rows = [
            ("http", "slow_head", 2.0),
            ("http", "idle", 2.0),
            ("grpc", "idle", 1.0),
        ];
        rows.iter()
            .all(|(port, reason, least)| closed(port, reason) >= *least)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_body_that_stops_is_refused() {
    let _turn = turns::shared().await;
    let server = Server::start(impatient()).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    let mut stream = connect(server.port).await;
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    within("an answer", LIMIT, read).await.expect("readable");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");

    // An unfinished message on each gRPC port, also to a service that needs no key.
    for (port, path) in [
        (server.grpc_port, "/lockstep.v1.Inference/Generate"),
        (server.grpc_port, "/grpc.health.v1.Health/Check"),
        (
            server.sglang_port,
            "/sglang.grpc.scheduler.SglangScheduler/Generate",
        ),
        (server.sglang_port, "/grpc.health.v1.Health/Check"),
    ] {
        let mut call = lockstep_tests::h2::hello();
        call.extend(lockstep_tests::h2::headers(1, path));
        // The call announces a message of 1,000 bytes and sends one byte.
        call.extend(lockstep_tests::h2::data(1, &[0, 0, 0, 3, 232, 7]));
        let mut stream = connect(port).await;
        stream.write_all(&call).await.expect("sent");
        let ended = lockstep_tests::h2::stream_ends(&mut stream, 1);
        within(path, LIMIT, ended).await;
    }
    assert_eq!(
        http::answer(server.client.get(server.url("/health")))
            .await
            .expect("answered")
            .status,
        200
    );
}

#[tokio::test]
async fn calls_without_an_end_keep_no_connection() {
    let _turn = turns::shared().await;
    let options = one_rank()
        .set("--keep-alive-timeout", "1")
        .set("--min-body-rate", "0");
    let server = Server::start(options).await;
    let mut endless = Vec::new();
    for port in [server.grpc_port, server.sglang_port] {
        for path in [
            "/grpc.health.v1.Health/Watch",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ] {
            let mut call = lockstep_tests::h2::hello();
            call.extend(lockstep_tests::h2::headers(1, path));
            call.extend(lockstep_tests::h2::data(1, &[0; 5]));
            endless.push(flood::begin(port, &call).await);
        }
    }
    within("an end to all of them", LIMIT, flood::closed(endless)).await;
}
