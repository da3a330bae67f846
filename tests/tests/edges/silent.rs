//! Silent connections, more than the server has places.

use std::time::{Duration, Instant};

use lockstep_proto::pb::{
    lockstep::GetModelInfoRequest, sglang::grpc::scheduler::HealthCheckRequest,
};
use lockstep_tests::{
    body::{COUNTED, counting},
    flood,
    row::{Row, say},
    server::Server,
    turns,
    wait::{LIMIT, until, within},
};
use serde_json::json;
use tokio::net::TcpStream;

use crate::{nodes::Nodes, one_rank};

/// Checks that a new client gets its answers: health, a chat, and a call on each gRPC
/// port.
async fn innocents_are_served(server: &Server) {
    assert_eq!(server.get("/health").await.status, 200);
    let answer = server
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    let mut client = server.inference().await;
    let info = client.get_model_info(GetModelInfoRequest {}).await;
    info.expect("lockstep.v1.Inference answers");
    let mut client = server.sglang().await;
    let health = client.health_check(HealthCheckRequest {}).await;
    health.expect("SGLang's service answers");
}

#[tokio::test]
async fn silent_connections_give_way_and_are_closed() {
    let _turn = turns::shared().await;
    let options = one_rank()
        .set("--max-connections", "16")
        .set("--first-byte-timeout", "5");
    let server = Server::start(options).await;
    let ports = [server.port, server.grpc_port, server.sglang_port];
    let mut silent = Vec::new();
    for port in ports {
        silent.extend(flood::silent(port, 60).await);
    }
    innocents_are_served(&server).await;
    within("an end to all of them", LIMIT, flood::closed(silent)).await;
    let metrics = server.metrics().await;
    for port in ["http", "grpc", "sglang"] {
        for (reason, least) in [("evicted", 40.0), ("silent", 1.0)] {
            let of = |name: &str| metrics.sum_with(name, &[("port", port), ("reason", reason)]);
            let closed = of("lockstep_connections_closed_total");
            assert!(closed >= least, "{port} {reason}: {closed}");
        }
    }
}

#[tokio::test]
async fn one_address_leaves_room_for_others() {
    let _turn = turns::shared().await;
    let options = one_rank()
        .set("--max-connections", "8")
        .set("--max-connections-per-peer", "2");
    let server = Server::start(options).await;
    // The third connection of this address evicts the first one of the address,
    // although there is room.
    let mut silent = flood::silent_from("127.0.0.2", server.port, 3).await;
    let rest = silent.split_off(1);
    within("an end to the oldest", LIMIT, flood::closed(silent)).await;
    assert_eq!(flood::open(&rest), 2, "the newer ones stay");
    innocents_are_served(&server).await;
}

#[tokio::test]
async fn probes_are_answered_when_every_place_works() {
    let _turn = turns::shared().await;
    let server = Server::start(one_rank().set("--max-connections", "2")).await;
    let endless = counting(&json!({"max_tokens": 1900, "ignore_eos": true, "stream": true}));
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut events = server.stream("/v1/chat/completions", &endless).await;
        events.next().await;
        running.push(events);
    }
    // Both places are at work, so the server gives neither away.
    assert_eq!(server.get("/health").await.status, 200);
    let refused = server.post("/v1/chat/completions", &endless).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(refused.error()["code"], "service_unavailable");
    drop(running);
    until("places again", LIMIT, async || {
        let body = counting(&json!({}));
        let answer = server.post("/v1/chat/completions", &body).await;
        (answer.status == 200).then_some(())
    })
    .await;
}

/// Number of silent connections on each port at full size, half of them from each of
/// two addresses.
const EACH: usize = 5000;

async fn five_thousand(port: u16) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for address in ["127.0.0.1", "127.0.0.2"] {
        silent.extend(flood::silent_from(address, port, EACH / 2).await);
    }
    silent
}

/// Opens 5,000 connections on every port from two addresses. On the port for nodes they
/// also stand open while the nodes start. Each process needs some 16,000 descriptors.
#[tokio::test]
#[ignore = "full size: takes a minute, and the ports of two addresses"]
async fn five_thousand_silent_connections_on_every_port() {
    let _turn = turns::alone().await;
    let nodes = Nodes::new();
    let first = Server::launch(nodes.options(0));
    nodes.open().await;
    let begin = Instant::now();
    let silent = five_thousand(nodes.port).await;
    let _second = Server::launch(nodes.options(1));
    first.ready().await;
    say(&format!(
        "two nodes found each other within {:?}",
        begin.elapsed()
    ));
    within("an end to all of them", LIMIT, flood::closed(silent)).await;
    for ports in [
        vec![first.port, first.grpc_port, first.sglang_port],
        vec![nodes.port],
    ] {
        let row = Row::begin("01", &first);
        let mut silent = Vec::new();
        for port in &ports {
            silent.extend(five_thousand(*port).await);
        }
        let asked = Instant::now();
        innocents_are_served(&first).await;
        let served = asked.elapsed();
        // `--first-byte-timeout` plus the interval of a second between checks.
        within("an end", Duration::from_secs(13), flood::closed(silent)).await;
        let outcome = format!(
            "{} ports, all closed; served within {served:.1?}",
            ports.len()
        );
        let times = row.end(&first, &outcome).await;
        let longest = |of: &[Duration]| of.iter().max().copied();
        assert!(longest(&times.health) <= Some(Duration::from_secs(1)));
        assert!(longest(&times.chat) <= Some(Duration::from_secs(5)));
    }
}
