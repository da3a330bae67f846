//! A single request with very many choices.

use lockstep_tests::{
    body::{COUNTED, chat, counting},
    server::Server,
    sse::Event,
    turns,
    wait::{LIMIT, until},
};
use serde_json::json;

use crate::options;

const CHAT: &str = "/v1/chat/completions";
const CHOICES: usize = 64;

#[tokio::test]
async fn a_request_with_many_choices_holds_up_nobody() {
    let _turn = turns::alone().await;
    let server = Server::start(options().set("--max-running-requests", "8")).await;
    let fields = json!({"n": CHOICES, "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut greedy = server.stream(CHAT, &chat("Hello.", &fields)).await;
    assert!(matches!(greedy.next().await, Event::Json(_)));
    until("all slots in use", LIMIT, async || {
        let running = server
            .metrics()
            .await
            .value("lockstep_num_requests_running");
        (running == 8.0).then_some(())
    })
    .await;
    let counted = counting(&json!({}));
    let (one, two) = tokio::join!(server.ok(CHAT, &counted), server.ok(CHAT, &counted));
    for answer in [one, two] {
        assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    }
    // The other requests did not wait for the end of any choice.
    let metrics = server.metrics().await;
    let left = metrics.value("lockstep_num_requests_running")
        + metrics.value("lockstep_num_requests_waiting");
    assert_eq!(left, CHOICES as f64);
}

#[tokio::test]
async fn no_request_has_more_choices_than_openai_allows() {
    let _turn = turns::shared().await;
    let server = Server::shared(&options()).await;
    let answer = server.post(CHAT, &counting(&json!({"n": 129}))).await;
    assert_eq!(answer.status, 400);
    let error = answer.error();
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!("n"), &json!("integer_above_max_value"))
    );
    let most = server
        .ok(CHAT, &counting(&json!({"n": 128, "max_tokens": 1})))
        .await;
    assert_eq!(most["choices"].as_array().map(Vec::len), Some(128));
}
