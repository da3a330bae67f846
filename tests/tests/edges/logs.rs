//! A server whose output nobody reads.

use std::time::Duration;

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, chat, counting},
    processes::Role,
    raw,
    server::Server,
    sse::Event,
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::options;

const CHAT: &str = "/v1/chat/completions";
/// Length of a path in bytes. The log keeps most of a path.
const PATH: usize = 300;
/// Bytes that a request with such a path adds to the log, rather too few than too many.
pub const LINE: usize = 400;
/// Number of log lines that fill the queue (1 MiB), the writer (1 MiB) and a pipe.
pub const ALL_FULL: usize = ((2 << 20) + (128 << 10)) / LINE;
/// Number of log lines that fill a pipe.
const PIPE_FULL: usize = (128 << 10) / LINE;
/// Time limit for a drain of one second and the end after the drain, on a slow machine.
const ENDED: Duration = Duration::from_secs(30);

/// Lets the server log `lines` lines, by pipelined requests on one connection.
pub async fn flood(server: &Server, lines: usize) {
    const REFUSED: &[u8] = b"HTTP/1.1 404";
    let path = "x".repeat(PATH);
    let one = format!("GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let (mut read, mut write) = raw::connect(server.port).await.into_split();
    let ask = async {
        let all = one.repeat(lines);
        write.write_all(all.as_bytes()).await.expect("it is read");
    };
    let answers = async {
        let (mut seen, mut text, mut buffer) = (0, Vec::new(), vec![0; 64 << 10]);
        while seen < lines {
            let came = read.read(&mut buffer).await.expect("answered");
            assert_ne!(came, 0, "{seen} of {lines} answered");
            text.extend_from_slice(&buffer[..came]);
            let begins = text.windows(REFUSED.len());
            seen += begins.filter(|begin| *begin == REFUSED).count();
            // The end of the text may be the beginning of the next match.
            text.drain(..text.len().saturating_sub(REFUSED.len() - 1));
        }
    };
    tokio::join!(ask, answers);
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
    let log = server.log();
    let line = log.lines().find(|line| line.contains("/xxxx"));
    assert!(line.expect("of the flood").len() >= LINE, "{line:?}");
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
