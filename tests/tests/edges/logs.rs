//! Nobody reads what the server writes.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, chat, counting},
    processes::Role,
    server::Server,
    sse::Event,
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::json;

use crate::options;

const CHAT: &str = "/v1/chat/completions";
/// Of each line that a request leaves in the log.
const LINE: usize = 6000;
/// More lines than pipes and queues hold.
pub const ALL_FULL: usize = 800;
/// More than a pipe holds.
const PIPE_FULL: usize = 100;
/// A drain of one second, and what ends after it, on a slow machine.
const ENDED: Duration = Duration::from_secs(30);

/// Makes it log so many lines.
pub async fn flood(server: &Server, lines: usize) {
    let path = format!("/{}", "x".repeat(LINE));
    let requests = (0..lines).map(|_| server.get(&path));
    let mut answers = stream::iter(requests).buffer_unordered(8);
    while let Some(answer) = answers.next().await {
        assert_eq!(answer.status, 404);
    }
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_neither_requests_nor_the_end() {
    let _turn = turns::alone().await;
    let server = Server::start(options().unread()).await;
    flood(&server, ALL_FULL).await;
    let answer = server.ok(CHAT, &counting(&json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    assert_eq!(server.get("/health").await.status, 200);
    until("lost lines to be counted", LIMIT, async || {
        let metrics = server.metrics().await;
        (metrics.value("lockstep_log_lines_lost_total") > 0.0).then_some(())
    })
    .await;
    server.signal(Signal::TERM).await;
    assert_eq!(server.exit(ENDED).await, i32::from(exit::OK));
}

#[tokio::test]
async fn who_reads_again_is_told_what_was_lost_and_why_it_ended() {
    let _turn = turns::alone().await;
    let server = Server::start(options().unread()).await;
    flood(&server, ALL_FULL).await;
    server.read_output();
    server.says("log lines were lost").await;
    server.process(Role::Worker(0)).await.kill();
    assert_eq!(server.exit(ENDED).await, i32::from(exit::PROCESS_DIED));
    server.says("worker 0 was killed by signal 9").await;
}

#[tokio::test]
async fn a_drain_ends_in_time_with_an_unread_log_and_a_stopped_process() {
    for role in [
        Role::TokenizerManager(0),
        Role::Scheduler,
        Role::Worker(0),
        Role::Worker(1),
    ] {
        let _turn = turns::alone().await;
        let options = options().set("--drain-timeout", "1").unread();
        let server = Server::start(options).await;
        flood(&server, PIPE_FULL).await;
        let endless = json!({"max_tokens": 1900, "ignore_eos": true, "stream": true});
        let mut events = server.stream(CHAT, &chat("Hello.", &endless)).await;
        assert!(matches!(events.next().await, Event::Json(_)));
        server.process(role).await.signal(Signal::STOP);
        server.signal(Signal::TERM).await;
        let code = server.exit(ENDED).await;
        assert_eq!(code, i32::from(exit::DRAIN_LIMIT), "{role:?}");
    }
}

#[tokio::test]
async fn a_start_that_fails_says_why_to_who_reads_late() {
    let _turn = turns::alone().await;
    let options = options().set("--model-path", "/nowhere").unread();
    let server = Server::launch(options);
    let code = until("its end", LIMIT, async || server.ended()).await;
    assert_ne!(code, i32::from(exit::OK));
    server.read_output();
    server.says("/nowhere").await;
}
