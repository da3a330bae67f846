//! The orderly end that an operator asks for.

use lockstep_process::exit;
use lockstep_tests::{
    body::chat,
    server::Server,
    sse::{Event, Events},
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::options;

const PATH: &str = "/v1/chat/completions";

fn body(tokens: u32, choices: u32) -> Value {
    let fields = json!({"max_tokens": tokens, "n": choices, "ignore_eos": true, "stream": true});
    chat("Hello.", &fields)
}

/// Starts a stream and waits for its first event.
async fn begun(server: &Server, tokens: u32, choices: u32) -> Events {
    let mut events = server.stream(PATH, &body(tokens, choices)).await;
    assert!(matches!(events.next().await, Event::Json(_)));
    events
}

/// Waits until the server refuses new requests or no longer accepts connections.
async fn refused(server: &Server) {
    until("refusal of new requests", LIMIT, async || {
        let Ok(answer) = server
            .try_post(PATH, &chat("a", &json!({"max_tokens": 1})))
            .await
        else {
            return Some(());
        };
        if answer.status == 200 {
            return None;
        }
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert!(answer.headers.contains_key("retry-after"));
        answer.error();
        Some(())
    })
    .await;
}

async fn error(events: &mut Events) -> Value {
    loop {
        let event = events.next().await;
        match event.error() {
            Some(error) => return error.clone(),
            None => assert!(matches!(event, Event::Json(_)), "{event:?}"),
        }
    }
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_ends_well() {
    for signal in [Signal::TERM, Signal::INT] {
        let _turn = turns::alone().await;
        let server = Server::start(options()).await;
        let events = begun(&server, 300, 2).await;
        let whole = async {
            let mut body = body(300, 1);
            body["stream"] = json!(false);
            server.ok(PATH, &body).await
        };
        let ended = async {
            until("both run", LIMIT, async || {
                let metrics = server.metrics().await;
                (metrics.value("lockstep_num_requests_running") == 3.0).then_some(())
            })
            .await;
            server.signal(signal).await;
            refused(&server).await;
            let chunks = events.chunks().await;
            let ends = chunks
                .iter()
                .filter(|chunk| chunk["choices"][0]["finish_reason"] == "length");
            assert_eq!(ends.count(), 2);
        };
        let (whole, ()) = tokio::join!(whole, ended);
        assert_eq!(whole["usage"]["completion_tokens"], 300);
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
    }
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let _turn = turns::alone().await;
    let server = Server::start(options()).await;
    let mut events = begun(&server, 1900, 32).await;
    server.signal(Signal::TERM).await;
    refused(&server).await;
    server.signal(Signal::TERM).await;
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::INTERRUPTED));
    assert_eq!(error(&mut events).await["type"], "server_error");
}

#[tokio::test]
async fn past_the_drain_limit_the_rest_gets_an_error() {
    let _turn = turns::alone().await;
    let server = Server::start(options().set("--drain-timeout", "1")).await;
    let mut events = begun(&server, 1900, 32).await;
    server.signal(Signal::TERM).await;
    assert_eq!(error(&mut events).await["type"], "server_error");
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::DRAIN_LIMIT));
    // The log reports an end that was asked for, not an error, and names the option
    // that helps.
    let log = server.log();
    assert!(log.contains("--drain-timeout gives them longer"), "{log}");
    assert!(log.contains("exit code 4"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn an_idle_server_ends_at_once() {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    server.signal(Signal::TERM).await;
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
    // Only the logs are left of the server.
    let left: Vec<_> = std::fs::read_dir(server.folder())
        .expect("the folder")
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != "stdout" && name != "stderr")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
