//! Every step gives a chunk, even if its token completes no text.

use std::collections::VecDeque;

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use serde_json::{Value, json};

use super::{
    client::{chat, completion, with},
    harness::{Front, start},
    messages::message,
    mock::{EOS, ended, id, ids, logprob, tokens},
    responses::response,
};

/// Two tokens that are one character only together: "é" is C3 A9.
const HALVES: [u32; 2] = [130, 105];

/// A stream read event by event.
pub struct Events {
    response: reqwest::Response,
    text: String,
    read: VecDeque<Value>,
}

impl Events {
    /// The next chunk that is not the greeting; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(event) = self.read.pop_front() {
                if event["choices"][0]["delta"]["role"].is_null() {
                    return Some(event);
                }
            }
            let bytes = self.response.chunk().await.expect("readable")?;
            self.text
                .push_str(std::str::from_utf8(&bytes).expect("text"));
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.strip_prefix("data: ").expect("an event");
                if data != "[DONE]" {
                    self.read
                        .push_back(serde_json::from_str(data).expect("json"));
                }
                self.text = rest.to_owned();
            }
        }
    }
}

/// Begins to read a stream.
pub async fn open(front: &Front, path: &str, body: &Value) -> Events {
    let request = front.client.post(format!("{}{path}", front.url)).json(body);
    let response = request.send().await.expect("answered");
    assert_eq!(response.status(), 200);
    Events {
        response,
        text: String::new(),
        read: VecDeque::new(),
    }
}

fn text(chunk: &Value) -> String {
    let choice = &chunk["choices"][0];
    let text = choice["delta"]["content"]
        .as_str()
        .or(choice["text"].as_str());
    text.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_step_without_a_text_has_a_chunk() {
    let front = start().await;
    let fields = json!({"stream": true, "stop": ["xyz"],
                        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    for (path, body) in [
        ("/v1/chat/completions", chat(&fields)),
        ("/v1/completions", completion(&fields)),
    ] {
        let (job, mut events) = tokio::join!(
            async {
                let job = front.mock.job().await;
                job.send(tokens(&HALVES[..1]));
                job
            },
            open(&front, path, &body)
        );
        // The next token is sent only after the client has read this token's chunk.
        let steps = [
            (HALVES[1], ""),
            (id('x'), "é"),
            (id('y'), ""),
            (id('a'), ""),
        ];
        for (at, (next, shown)) in steps.into_iter().enumerate() {
            let chunk = events.next().await.expect("a chunk");
            assert_eq!(text(&chunk), shown, "{chunk}");
            assert!(chunk["choices"][0]["finish_reason"].is_null(), "{chunk}");
            assert_eq!(chunk["usage"]["completion_tokens"], at + 1, "{chunk}");
            job.send(tokens(&[next]));
        }
        assert_eq!(text(&events.next().await.expect("a chunk")), "xya");
        job.finish(FinishReason::Length, 5);
        let last = events.next().await.expect("the end");
        assert_eq!(last["choices"][0]["finish_reason"], "length");
    }
    let metrics = front.get("/metrics").await.1;
    let gaps = "lockstep_inter_token_latency_seconds_count";
    let gaps = metrics
        .lines()
        .find(|line| line.starts_with(gaps))
        .expect("counted");
    assert!(gaps.ends_with(" 8"), "four gaps each: {gaps}");
}

#[tokio::test]
async fn native_streams_count_steps_too() {
    let front = start().await;
    let body = with(json!({"text": "a", "stream": true}), &json!({}));
    let (job, mut events) = tokio::join!(
        async {
            let job = front.mock.job().await;
            job.send(tokens(&HALVES[..1]));
            job
        },
        open(&front, "/generate", &body)
    );
    let first = events.next().await.expect("a chunk");
    assert_eq!(
        (&first["text"], &first["meta_info"]["completion_tokens"]),
        (&json!(""), &json!(1))
    );
    job.send(tokens(&HALVES[1..]));
    let second = events.next().await.expect("a chunk");
    assert_eq!(second["text"], "é");
    job.finish(FinishReason::Length, 2);
    while events.next().await.is_some() {}
}

/// An end token comes with the end, and nothing of it shows.
#[tokio::test]
async fn a_last_token_without_a_text_has_its_log_probability() {
    let front = start().await;
    let body = chat(&json!({"stream": true, "logprobs": true}));
    let described = |token, value| Output {
        logprobs: vec![logprob(token, Some(value), &[])],
        ..tokens(&[token])
    };
    let (job, mut events) = tokio::join!(
        async {
            let job = front.mock.job().await;
            job.send(described(id('a'), -0.5));
            job
        },
        open(&front, "/v1/chat/completions", &body)
    );
    assert_eq!(text(&events.next().await.expect("a chunk")), "a");
    let last = ended(FinishReason::Stop, job.usage(2), Some(EOS));
    job.send(Output {
        finish: last.finish,
        ..described(EOS, -0.25)
    });
    let chunk = events.next().await.expect("a chunk");
    let content = &chunk["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["logprob"], -0.25, "{chunk}");
    let end = events.next().await.expect("the end");
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
}

/// Proxies pass a stream on as it comes, and keep none of it.
#[tokio::test]
async fn a_stream_says_what_it_is() {
    let front = start().await;
    let fields = json!({"stream": true});
    for (path, body) in [
        ("/v1/chat/completions", chat(&fields)),
        ("/v1/completions", completion(&fields)),
        ("/v1/messages", message(&fields)),
        ("/v1/responses", response(&fields)),
        ("/generate", with(json!({"text": "a"}), &fields)),
    ] {
        let (events, ()) = tokio::join!(open(&front, path, &body), async {
            let job = front.mock.job().await;
            job.tokens(&ids("a"));
            job.finish(FinishReason::Stop, 1);
        });
        for (name, value) in [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(events.response.headers()[name], value, "{path}");
        }
    }
}
