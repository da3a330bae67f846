//! Several tokenizer-managers behind one port.

use std::collections::BTreeSet;

use lockstep_proto::pb::lockstep::{
    AbortRequest, FinishReason, GenerateRequest, GenerateResponse, generate_request::Input,
};
use lockstep_tests::{
    body::{COUNTED, chat, completion, counting},
    processes::Role,
    server::Server,
    sse::{Event, Events},
    turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use crate::{grpc::greedy, options};

/// Long enough that no request ends by itself before it is aborted.
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
    // The kernel spreads connections over them.
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
    // Whichever is scraped, the engine's series are the same.
    for _ in 0..8 {
        let metrics = server.metrics().await;
        assert!(metrics.value("lockstep_requests_total") >= 16.0);
    }
}

/// A stream that has begun, of a request that its client calls `id`.
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

/// A call that has begun, whose client calls it `id`.
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
    // Every call has a connection of its own, which the kernel gives to either.
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
