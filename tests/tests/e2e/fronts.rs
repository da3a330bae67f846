//! Several tokenizer-managers that share one port.

use std::{collections::BTreeSet, time::Duration};

use lockstep_proto::pb::lockstep::{
    AbortRequest, FinishReason, GenerateRequest, GenerateResponse, generate_request::Input,
};
use lockstep_tests::{
    body::{COUNTED, chat, completion, counting},
    metrics::Metrics,
    processes::Role,
    server::Server,
    sse::{Event, Events},
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use crate::{grpc::greedy, options};

/// Time limit for an answer, longer than one tokenizer-manager waits for another.
const ANSWER: Duration = Duration::from_secs(3);
/// Answer length in tokens: long enough that no request ends before its abort.
const TOKENS: u32 = 1900;

#[tokio::test]
async fn tokenizer_managers_share_the_port_and_the_engine() {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--tokenizer-managers", "2")).await;
    let fronts = server
        .processes()
        .into_iter()
        .filter(|process| matches!(process.role, Role::TokenizerManager(_)));
    assert_eq!(fronts.count(), 2);
    // The kernel spreads connections over the tokenizer-managers.
    let mut seen = BTreeSet::new();
    until("an answer from both", LIMIT, async || {
        let info = server.get("/server_info").await.ok();
        seen.insert(info["tokenizer_manager"].as_u64());
        (seen.len() == 2).then_some(())
    })
    .await;
    let bodies: Vec<_> = (0..16).map(|_| counting(&json!({}))).collect();
    let answers = bodies
        .iter()
        .map(|body| server.ok("/v1/chat/completions", body));
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    }
}

#[tokio::test]
async fn whichever_front_is_asked_tells_of_all() {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--tokenizer-managers", "2")).await;
    let body = counting(&json!({}));
    let path = "/v1/chat/completions";
    for _ in 0..16 {
        server.ok(path, &body).await;
    }
    // Every scrape opens a connection, and the kernel picks the tokenizer-manager.
    for scrape in 0..8 {
        let metrics = server.metrics().await;
        let answered = metrics.sum_with("lockstep_http_requests_total", &[("route", path)]);
        assert_eq!(answered, 16.0, "{scrape}");
        for front in ["0", "1"] {
            let label = [("tokenizer_manager", front)];
            let memory = metrics.sum_with("process_resident_memory_bytes", &label);
            assert!(memory > 0.0, "{scrape}: {front}");
        }
        assert_eq!(metrics.value("lockstep_tokenizer_managers_silent"), 0.0);
        // The server's own requests, at the start and for its health, are not counted.
        assert_eq!(metrics.value("lockstep_requests_total"), 16.0);
    }
    let mut streams = Vec::new();
    for at in 0..3 {
        streams.push(begun(&server, &format!("load-{at}"), true).await);
    }
    // Each tokenizer-manager knows the load of the other, at most a second late.
    for _ in 0..8 {
        until("all three", LIMIT, async || {
            let load = server.get("/load").await.ok();
            (load == json!({"server_load": 3})).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_front_that_hangs_is_counted_by_the_other() {
    let _turn = turns::shared().await;
    let two = options().set("--tokenizer-managers", "2");
    let server = Server::start(two.set("--ping-timeout", "0")).await;
    let hung = server.process(Role::TokenizerManager(1)).await;
    hung.signal(Signal::STOP);
    // Connections to the hanging tokenizer-manager get no answer.
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER);
    let client = client.build().expect("a client");
    let text = until("an answer of the other", LIMIT, async || {
        let response = client.get(server.url("/metrics")).send().await.ok()?;
        response.text().await.ok()
    })
    .await;
    hung.signal(Signal::CONT);
    let metrics = Metrics::parse(&text);
    assert_eq!(metrics.value("lockstep_tokenizer_managers_silent"), 1.0);
    let of = |front| [("tokenizer_manager", front)];
    let memory = |front| metrics.sum_with("process_resident_memory_bytes", &of(front));
    assert!(memory("0") > 0.0);
    assert_eq!(memory("1"), 0.0);
}

/// Starts a stream whose client names the request `id`, and waits for its first event.
async fn begun(server: &Server, id: &str, chats: bool) -> Events {
    let endless = json!({"max_tokens": TOKENS, "ignore_eos": true, "stream": true});
    let (path, body): (_, Value) = match chats {
        true => ("/v1/chat/completions", chat("Hello.", &endless)),
        false => ("/v1/completions", completion("Hello.", &endless)),
    };
    let request = server.client.post(server.url(path)).json(&body);
    let response = request.header("x-request-id", id).send().await;
    let mut events = Events::new(response.expect("answered"));
    assert!(matches!(events.next().await, Event::Json(_)));
    events
}

/// Starts a gRPC call whose client names the request `id`, and waits for its first
/// message.
async fn called(server: &Server, id: &str) -> Streaming<GenerateResponse> {
    let mut request = GenerateRequest {
        request_id: Some(id.to_owned()),
        ..greedy(Input::Text("Hello.".to_owned()), TOKENS)
    };
    request.sampling.as_mut().expect("set").ignore_eos = Some(true);
    let call = server.inference().await.generate(request).await;
    let mut messages = call.expect("accepted").into_inner();
    messages.message().await.expect("a message");
    messages
}

async fn ends_aborted(mut messages: Streaming<GenerateResponse>) {
    loop {
        match messages.message().await {
            Ok(Some(message)) if message.finish_reason.is_none() => {}
            Ok(Some(last)) => return assert_eq!(last.finish_reason(), FinishReason::Abort),
            Ok(None) => panic!("no end"),
            Err(status) => return assert_eq!(status.code(), Code::Aborted, "{status:?}"),
        }
    }
}

#[tokio::test]
async fn an_abort_reaches_the_front_that_has_the_request() {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--tokenizer-managers", "2")).await;
    let abort = async |body: Value| server.ok("/abort_request", &body).await;
    // Every call opens a connection, and the kernel picks the tokenizer-manager.
    let mut streams = Vec::new();
    for at in 0..10 {
        streams.push(begun(&server, &format!("mine-{at}"), at % 2 == 0).await);
    }
    for (at, events) in streams.into_iter().enumerate() {
        let answer = abort(json!({"rid": format!("mine-{at}")})).await;
        assert_eq!(answer, json!({"aborted": 1}), "{at}");
        events.aborted().await;
    }
    for at in 0..6 {
        let messages = called(&server, &format!("call-{at}")).await;
        let abort = AbortRequest {
            request_id: format!("call-{at}"),
        };
        let answer = server.inference().await.abort(abort).await;
        assert!(answer.expect("an answer").into_inner().found, "{at}");
        ends_aborted(messages).await;
    }
    let mut streams = Vec::new();
    for at in 0..6 {
        streams.push(begun(&server, &format!("all-{at}"), true).await);
    }
    assert_eq!(abort(json!({"abort_all": true})).await["aborted"], 6);
    for events in streams {
        events.aborted().await;
    }
}
