//! Processes that are stopped but do not end.

use std::time::Duration;

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    processes::Role,
    server::Server,
    turns,
    wait::{LIMIT, until, within},
};
use rustix::process::Signal;
use serde_json::json;

use crate::options;

/// Time limit for an answer of `/health` with `--health-timeout 1`.
const HEALTH: Duration = Duration::from_secs(4);

async fn unhealthy(server: &Server) {
    // A step of a moment ago still counts as health.
    until("an unhealthy answer", LIMIT, async || {
        let health = within("any answer of /health", HEALTH, server.get("/health")).await;
        if health.status == 200 {
            return None;
        }
        assert_eq!(health.status, 503);
        assert_eq!(health.error()["code"], "service_unavailable");
        Some(())
    })
    .await;
}

#[tokio::test]
async fn health_fails_while_a_process_is_stopped_and_recovers() {
    let _turn = turns::alone().await;
    let options = options()
        .set("--health-timeout", "1")
        .set("--ping-timeout", "0");
    let server = Server::start(options).await;
    for role in [Role::Worker(0), Role::Worker(1), Role::Scheduler] {
        let process = server.process(role).await;
        process.signal(Signal::STOP);
        let body = counting(&json!({}));
        let (answer, ()) = tokio::join!(server.ok("/v1/chat/completions", &body), async {
            unhealthy(&server).await;
            process.signal(Signal::CONT);
        });
        assert_eq!(
            answer["choices"][0]["message"]["content"], COUNTED,
            "{role:?}"
        );
        assert_eq!(server.get("/health").await.status, 200, "{role:?}");
    }
}

#[tokio::test]
async fn a_rank_that_hangs_past_the_watchdog_ends_the_engine() {
    let _turn = turns::alone().await;
    let options = options()
        .set("--health-timeout", "1")
        .set("--watchdog-timeout", "2");
    let server = Server::start(options).await;
    server.process(Role::Worker(1)).await.signal(Signal::STOP);
    let answer = server
        .post("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    let message = answer.error()["message"].to_string();
    assert!(message.contains("--watchdog-timeout"), "{message}");
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::PROCESS_DIED));
    assert!(
        server.log().contains("--watchdog-timeout"),
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn a_stopped_process_cannot_hold_up_the_end() {
    for role in [Role::Worker(1), Role::Scheduler, Role::TokenizerManager(0)] {
        let _turn = turns::alone().await;
        let server = Server::start(options().set("--drain-timeout", "1")).await;
        server.process(role).await.signal(Signal::STOP);
        server.signal(Signal::TERM).await;
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::DRAIN_LIMIT));
    }
}

#[tokio::test]
async fn stopped_processes_do_not_outlive_their_launcher() {
    let _turn = turns::alone().await;
    let server = Server::start(options()).await;
    for process in server.processes() {
        if process.role != Role::Launcher {
            process.signal(Signal::STOP);
        }
    }
    server.process(Role::Launcher).await.kill();
    assert_eq!(server.exit(LIMIT).await, -1);
}
