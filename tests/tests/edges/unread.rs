//! Answers whose clients do not read.

use lockstep_tests::{
    flood, h2,
    server::Server,
    turns,
    wait::{LIMIT, until, within},
};

use crate::one_rank;

#[tokio::test]
async fn who_takes_nothing_of_an_answer_keeps_no_place() {
    let _turn = turns::shared().await;
    let server = Server::start(one_rank().set("--send-timeout", "1")).await;
    let health = "/grpc.health.v1.Health/Check";
    let ports = [
        ("http", server.port, "/x"),
        ("grpc", server.grpc_port, health),
        ("sglang", server.sglang_port, health),
    ];
    let mut unread = Vec::new();
    for (_, port, path) in ports {
        let mut calls = h2::hello_without_windows();
        for stream in [1, 3] {
            calls.extend(h2::headers(stream, path));
            calls.extend(h2::last_data(stream, &[0; 5]));
        }
        unread.push(flood::begin(port, &calls).await);
    }
    within("an end to all of them", LIMIT, flood::closed(unread)).await;
    until("the counts", LIMIT, async || {
        let metrics = server.metrics().await;
        let stalled = |port| {
            let name = "lockstep_connections_closed_total";
            metrics.sum_with(name, &[("port", port), ("reason", "stalled")])
        };
        ports
            .iter()
            .all(|(name, ..)| stalled(name) >= 1.0)
            .then_some(())
    })
    .await;
}
