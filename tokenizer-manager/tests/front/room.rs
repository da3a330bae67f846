//! Memory for answers, reserved before they begin.

use std::time::Duration;

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use serde_json::json;

use super::{
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
