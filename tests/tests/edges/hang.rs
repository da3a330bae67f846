//! Processes that hang without ending.

use std::collections::BTreeSet;

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, chat, counting},
    processes::Role,
    server::{Options, Server},
    sse::{Event, Events},
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::json;

use crate::options;

const CHAT: &str = "/v1/chat/completions";
const TOKENS: usize = 200;
/// Number of streams. Both tokenizer-managers get at least one, but for a chance of 1
/// in 500,000.
const STREAMS: usize = 20;

fn pinged() -> Options {
    options().set("--ping-timeout", "3")
}

/// Returns true if a stream came to its end, and false if its connection broke with its
/// tokenizer-manager.
async fn whole(mut events: Events) -> bool {
    loop {
        match events.next().await {
            Event::Json(_) => {}
            Event::Done | Event::End => return true,
            Event::Broken(_) => return false,
        }
    }
}

async fn counts(server: &Server) {
    let answer = server.ok(CHAT, &counting(&json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
}

#[tokio::test]
async fn a_front_that_hangs_is_replaced_alone() {
    let _turn = turns::alone().await;
    let options = pinged()
        .set("--tokenizer-managers", "2")
        .set("--max-restarts", "1");
    let server = Server::start(options).await;
    let before: BTreeSet<_> = server.processes().into_iter().collect();
    let fields = json!({"max_tokens": TOKENS, "ignore_eos": true, "stream": true});
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let mut events = server.stream(CHAT, &chat("Hello.", &fields)).await;
        assert!(matches!(events.next().await, Event::Json(_)));
        streams.push(events);
    }
    let hung = server.process(Role::TokenizerManager(0)).await;
    hung.signal(Signal::STOP);
    let ends = futures::future::join_all(streams.into_iter().map(whole)).await;
    assert!(ends.contains(&true), "those of the other front went on");
    assert!(ends.contains(&false), "those of the hanging front are told");
    until("a front in its place", LIMIT, async || {
        assert_eq!(server.ended(), None, "{}", server.log());
        let now: BTreeSet<_> = server.processes().into_iter().collect();
        let gone: Vec<_> = before.difference(&now).collect();
        (gone == [&hung] && now.len() == before.len()).then_some(())
    })
    .await;
    server.says("tokenizer-manager 0 serves again").await;
    server.says("did not answer for 3 s (--ping-timeout)").await;
    let mut seen = BTreeSet::new();
    until("an answer from both", LIMIT, async || {
        let info = server.get("/server_info").await.ok();
        seen.insert(info["tokenizer_manager"].as_u64());
        (seen.len() == 2).then_some(())
    })
    .await;
    for _ in 0..4 {
        counts(&server).await;
    }
}

#[tokio::test]
async fn an_engine_of_which_a_process_hangs_is_started_anew() {
    for role in [Role::Scheduler, Role::Worker(1)] {
        let _turn = turns::alone().await;
        let server = Server::start(pinged().set("--max-restarts", "1")).await;
        server.process(role).await.signal(Signal::STOP);
        server.says("Ready again after").await;
        counts(&server).await;
        server.process(role).await.signal(Signal::STOP);
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::PROCESS_DIED));
        let log = server.log();
        let cause = "did not answer for 3 s (--ping-timeout) and was killed";
        assert!(log.contains(cause), "{log}");
    }
}

#[tokio::test]
async fn without_restarts_a_hang_ends_the_server() {
    let _turn = turns::alone().await;
    let server = Server::start(pinged()).await;
    let hung = server.process(Role::TokenizerManager(0)).await;
    hung.signal(Signal::STOP);
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::PROCESS_DIED));
    server
        .says("tokenizer-manager 0 failed: did not answer")
        .await;
}
