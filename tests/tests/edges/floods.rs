//! More connections than descriptors, and strangers on the port for nodes.

use lockstep_proto::pb::sglang::grpc::scheduler::HealthCheckRequest;
use lockstep_tests::{
    body::{COUNTED, counting},
    flood,
    processes::Role,
    server::Server,
    turns,
    wait::{LIMIT, within},
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::{nodes::Nodes, one_rank};

/// Limits a process to its open descriptors and `more` new ones.
fn limit_descriptors(pid: i32, more: u64) {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours");
    let most = Some(open.count() as u64 + more);
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    prlimit(Pid::from_raw(pid), Resource::Nofile, limit).expect("a lower limit");
}

async fn a_chat_is_answered(server: &Server) {
    let body = counting(&json!({}));
    let answer = server.ok("/v1/chat/completions", &body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    let mut sglang = server.sglang().await;
    let health = sglang.health_check(HealthCheckRequest {}).await;
    health.expect("SGLang's service answers");
}

#[tokio::test]
async fn connections_beyond_the_descriptors_give_way() {
    let _turn = turns::shared().await;
    let server = Server::start(one_rank()).await;
    for role in [Role::TokenizerManager(0), Role::Scheduler] {
        limit_descriptors(server.process(role).await.pid, 16);
    }
    let mut silent = flood::silent(server.port, 40).await;
    silent.extend(flood::silent(server.sglang_port, 40).await);
    a_chat_is_answered(&server).await;
    drop(silent);
}

#[tokio::test]
async fn ports_share_the_descriptors_that_there_are() {
    let _turn = turns::shared().await;
    let server = Server::start(one_rank().limit("-n", 256)).await;
    let mut silent = Vec::new();
    for port in [server.port, server.grpc_port, server.sglang_port] {
        silent.extend(flood::silent(port, 150).await);
    }
    a_chat_is_answered(&server).await;
    assert!(!server.log().contains("could not be accepted"));
    drop(silent);
}

#[tokio::test]
async fn strangers_leave_nodes_their_places() {
    let _turn = turns::shared().await;
    let nodes = Nodes::new();
    let options = |rank| nodes.options(rank).set("--first-byte-timeout", "5");
    let first = Server::launch(options(0));
    nodes.open().await;
    let silent = flood::silent(nodes.port, 200).await;
    let _second = Server::launch(options(1));
    first.ready().await;
    within("an end to all of them", LIMIT, flood::closed(silent)).await;
    let metrics = first.metrics().await;
    let closed = |reason| {
        let name = "lockstep_connections_closed_total";
        metrics.sum_with(name, &[("port", "nodes"), ("reason", reason)])
    };
    assert!(closed("evicted") >= 100.0, "{}", closed("evicted"));
    assert!(closed("silent") >= 1.0);
    let answer = first
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
}
