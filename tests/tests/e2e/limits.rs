//! Full queues and time limits.

use lockstep_tests::{
    body::{chat, completion},
    http::Answer,
    server::Server,
    sse::Event,
    turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};
use tonic::Code;

use crate::{grpc, options, sglang};

/// A request of minutes: as many tokens as the context allows, perhaps for many
/// choices.
fn endless(fields: &Value) -> Value {
    let body = chat(
        "Hello.",
        &json!({"max_tokens": 1900, "ignore_eos": true, "stream": true}),
    );
    lockstep_tests::body::with(body, fields)
}

async fn waiting(server: &Server, requests: f64) {
    until("a queue", LIMIT, async || {
        let metrics = server.metrics().await;
        (metrics.value("lockstep_num_requests_waiting") == requests).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_refuses_and_says_when_to_come_back() {
    let _turn = turns::shared().await;
    let options = options()
        .set("--max-running-requests", "1")
        .set("--max-queued-requests", "1");
    let server = Server::start(options).await;
    let mut running = server
        .stream("/v1/chat/completions", &endless(&json!({})))
        .await;
    running.next().await;
    let queued = async {
        let body = endless(&json!({}));
        server.try_stream("/v1/chat/completions", &body).await
    };
    let refused = async {
        waiting(&server, 1.0).await;
        let body = completion("a", &json!({"max_tokens": 2}));
        let whole = server.post("/v1/completions", &body).await;
        refusal(&whole);
        let streamed = server
            .try_stream("/v1/chat/completions", &endless(&json!({})))
            .await;
        refusal(&streamed.expect("answered").expect_err("refused"));
        let input = lockstep_proto::pb::lockstep::generate_request::Input::Text("a".to_owned());
        let status = server
            .inference()
            .await
            .generate(grpc::greedy(input, 2))
            .await;
        let status = status.expect_err("refused");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.metadata().get("retry-after").is_some());
        let mut client = server.sglang().await;
        let called = client.generate(sglang::greedy("r", vec![5], 2)).await;
        let status = match called {
            Err(status) => status,
            Ok(stream) => stream.into_inner().message().await.expect_err("refused"),
        };
        assert_eq!(status.code(), Code::ResourceExhausted);
    };
    // The queued request leaves when the other requests have been refused.
    tokio::select! {
        _ = queued => panic!("the queued one runs"),
        () = refused => {}
    }
    waiting(&server, 0.0).await;
    drop(running);
    let body = completion("a", &json!({"max_tokens": 2}));
    until("room again", LIMIT, async || {
        (server.post("/v1/completions", &body).await.status == 200).then_some(())
    })
    .await;
}

fn refusal(answer: &Answer) {
    assert_eq!(answer.status, 429, "{}", answer.text);
    let after = answer
        .headers
        .get("retry-after")
        .and_then(|after| after.to_str().ok());
    assert!(
        after
            .and_then(|after| after.parse::<u32>().ok())
            .is_some_and(|after| after > 0)
    );
    let error = answer.error();
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["code"], "rate_limit_exceeded");
}

#[tokio::test]
async fn a_request_past_its_limit_ends_with_an_error() {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--request-timeout", "1")).await;
    let many = json!({"n": 32, "stream": false});
    let whole = server.post("/v1/chat/completions", &endless(&many)).await;
    assert_eq!(whole.status, 408, "{}", whole.text);
    let error = whole.error();
    assert_eq!(error["type"], "timeout_error");
    assert_eq!(error["code"], "request_timeout");

    let mut events = server
        .stream("/v1/chat/completions", &endless(&json!({"n": 32})))
        .await;
    let error = loop {
        let event = events.next().await;
        if event.error().is_some() {
            break event;
        }
        assert!(matches!(event, Event::Json(_)), "{event:?}");
    };
    assert_eq!(error.error().expect("found")["code"], "request_timeout");
    assert_eq!(events.next().await, Event::End);

    // A client may set a shorter limit.
    let input = lockstep_proto::pb::lockstep::generate_request::Input::Text("a".to_owned());
    let mut request = grpc::greedy(input, 1900);
    request.timeout_ms = Some(1);
    request.sampling.as_mut().expect("set").ignore_eos = Some(true);
    let mut client = server.inference().await;
    let status = match client.generate(request).await {
        Err(status) => status,
        Ok(stream) => {
            let mut stream = stream.into_inner();
            loop {
                match stream.message().await {
                    Ok(message) => assert!(message.is_some(), "no error"),
                    Err(status) => break status,
                }
            }
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_request_may_wait_only_so_long() {
    let _turn = turns::shared().await;
    let options = options()
        .set("--queue-timeout", "1")
        .set("--max-running-requests", "1");
    let server = Server::start(options).await;
    // One choice runs, and the other choices wait.
    let mut events = server
        .stream("/v1/chat/completions", &endless(&json!({"n": 16})))
        .await;
    let error = loop {
        let event = events.next().await;
        if event.error().is_some() {
            break event;
        }
        assert!(matches!(event, Event::Json(_)), "{event:?}");
    };
    let error = error.error().expect("found");
    assert_eq!(error["code"], "rate_limit_exceeded", "it may try again");
}
