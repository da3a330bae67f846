//! Memory for answers, reserved before they begin.

use std::time::Duration;

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use serde_json::json;

use super::{
    answers::start_tools,
    client::chat,
    harness::{Front, start_with},
    mock::{id, logprob, tokens},
};

/// Maximum tokens of each choice, and alternatives of each token.
const LONGEST: usize = 200;
const ALTERNATIVES: usize = 20;

/// Returns the next `count` tokens of a choice with all alternatives.
fn described(count: usize) -> Output {
    let token = id('a');
    let top = [(token, -0.5); ALTERNATIVES];
    Output {
        logprobs: vec![logprob(token, Some(-0.5), &top); count],
        ..tokens(&vec![token; count])
    }
}

/// Returns the bytes that requests hold.
async fn held(front: &Front) -> usize {
    let text = front.get("/metrics").await.1;
    let start = "lockstep_request_memory_bytes{model_name=\"demo\",tokenizer_manager=\"0\"} ";
    let value = text.lines().find_map(|line| line.strip_prefix(start));
    let value = value.unwrap_or_else(|| panic!("{text}"));
    value.parse().expect("a number")
}

#[tokio::test]
async fn room_for_log_probabilities_is_given_back_as_they_leave() {
    // Bytes that the transport may hold, outside every reserve.
    const BESIDE: usize = 320 << 10;
    let choice = LONGEST * (ALTERNATIVES + 1) * 80;
    let openai = json!({
        "stream": true, "logprobs": true, "top_logprobs": ALTERNATIVES,
        "n": 4, "max_tokens": LONGEST,
    });
    let native = json!({
        "text": "Hi.", "stream": true, "return_logprob": true,
        "top_logprobs_num": ALTERNATIVES,
        "sampling_params": {"n": 4, "max_new_tokens": LONGEST, "ignore_eos": true},
    });
    for (path, body, keeps) in [
        ("/v1/chat/completions", chat(&openai), false),
        ("/generate", native, true),
    ] {
        let front = start_with(|engine, _| engine.server.limits.memory_bytes = 16 << 20).await;
        let until = async |what: &str, is: &dyn Fn(usize) -> bool| {
            let wait = async { while !is(held(&front).await) {} };
            let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
            assert!(waited.is_ok(), "{path}, {what}: {}", held(&front).await);
        };
        let scheduler = async {
            let mut jobs = Vec::new();
            for _ in 0..4 {
                jobs.push(front.mock.job().await);
            }
            jobs[0].send(described(1));
            until("all is reserved", &|held| held > 3 * choice).await;
            // Two choices return no more than one token each.
            jobs[0].finish(FinishReason::Stop, 1);
            jobs[1].send(described(1));
            jobs[1].finish(FinishReason::Stop, 1);
            until("two ended", &|held| held < 2 * choice + BESIDE).await;
            // The other choices' data has been sent, or is kept for the next object.
            for job in &jobs[2..] {
                job.send(described(LONGEST - 10));
            }
            let most = if keeps { 2 * choice + BESIDE } else { BESIDE };
            until("the others' came", &|held| held < most).await;
            for job in &jobs[2..] {
                job.finish(FinishReason::Length, LONGEST as u32);
            }
        };
        let client = async {
            let (status, text) = front.post(path, &body).await;
            assert_eq!(status, 200, "{text}");
        };
        tokio::join!(client, scheduler);
        until("the end", &|held| held == 0).await;
    }
}

/// The arguments of a call come before its name, so nothing of it shows.
#[tokio::test]
async fn log_probabilities_of_text_that_is_held_back_need_their_room() {
    let tools = start_tools("qwen25", |engine| {
        engine.server.limits.memory_bytes = 1 << 20;
        engine.server.context_length = 10_000;
    })
    .await;
    let function = json!({"type": "function", "function": {"name": "look"}});
    let body = chat(
        &json!({"logprobs": true, "stream": true, "tools": [function],
        "chat_template_kwargs": {"enable_thinking": false}}),
    );
    let begin = tools.ids("<tool_call>\n{\"arguments\": {\"a\": \"");
    let scheduler = async {
        let job = tools.front.mock.job().await;
        let token = id('a');
        let say = |ids: &[u32]| {
            job.send(Output {
                logprobs: vec![logprob(token, Some(-0.5), &[]); ids.len()],
                ..tokens(ids)
            });
        };
        say(&begin);
        for _ in 0..6 {
            say(&[token; 1000]);
        }
        // It goes on, and is not waited for.
        assert_eq!(tools.front.mock.abort().await, job.submit.request);
    };
    let answer = tools.front.post("/v1/chat/completions", &body);
    let ((status, text), ()) = tokio::join!(answer, scheduler);
    // Steps that nobody has read yet come as one, so the stream may not have begun.
    assert!([200, 429].contains(&status), "{text}");
    assert!(text.contains("requests of this address"), "{text}");
}

/// Nobody has said how long the answer gets.
#[tokio::test]
async fn what_comes_beyond_what_was_expected_needs_its_room() {
    // Of which an address has half, and its large requests three quarters of that: more than
    // the 4096 tokens take that are expected, and less than six thousand do.
    let front = start_with(|engine, _| {
        engine.server.limits.memory_bytes = 1 << 20;
        engine.server.context_length = 10_000;
    })
    .await;
    let body = chat(&json!({"logprobs": true}));
    let scheduler = async {
        let job = front.mock.job().await;
        let token = id('a');
        for _ in 0..6 {
            job.send(Output {
                logprobs: vec![logprob(token, Some(-0.5), &[]); 1000],
                ..tokens(&[token; 1000])
            });
        }
        // It goes on, and is not waited for.
        assert_eq!(front.mock.abort().await, job.submit.request);
    };
    let answer = front.post("/v1/chat/completions", &body);
    let ((status, text), ()) = tokio::join!(answer, scheduler);
    assert_eq!(status, 429, "{text}");
    assert!(text.contains("requests of this address"), "{text}");
}
