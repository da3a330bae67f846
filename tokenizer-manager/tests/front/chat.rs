//! `/v1/chat/completions`.

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use serde_json::json;

use super::{
    client::{chat, chunks},
    harness::{CONTEXT, start},
    mock::{EOS, id, ids, logprob, tokens},
};

#[tokio::test]
async fn a_whole_answer() {
    let front = start().await;
    let body = chat(&json!({"max_tokens": 8, "temperature": 0, "seed": 5, "unknown": {"a": 1}}));
    let scheduler = async {
        let job = front.mock.job().await;
        let sampling = job.submit.sampling.clone().expect("sampling");
        assert_eq!(sampling.temperature, Some(0.0));
        assert_eq!(sampling.seed, Some(5));
        assert_eq!(sampling.stop_token_ids, [EOS]);
        assert_eq!(job.submit.max_new_tokens, 8);
        assert!(job.submit.trace_id.starts_with("chatcmpl-"));
        job.tokens(&ids("Hi"));
        job.end_token(EOS, 3);
        job.submit.input_ids.len()
    };
    let (answer, prompt) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["choices"][0]["logprobs"].is_null());
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3,
               "prompt_tokens_details": {"cached_tokens": 2}})
    );
    assert_eq!(answer["system_fingerprint"], "fp_0123456789ab");
}

#[tokio::test]
async fn a_stream_has_role_deltas_reason_and_usage() {
    let front = start().await;
    let body = chat(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let scheduler = async {
        let job = front.mock.job().await;
        job.tokens(&ids("Hi"));
        job.finish(FinishReason::Length, 2);
    };
    let ((status, text), ()) = tokio::join!(front.post("/v1/chat/completions", &body), scheduler);
    assert_eq!(status, 200);
    let chunks = chunks(&text);
    let (usage, rest) = chunks.split_last().expect("chunks");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 2);
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null()
        && chunk.get("usage").is_some()
        && chunk["id"] == usage["id"]
        && chunk["object"] == "chat.completion.chunk"));
    assert_eq!(
        rest[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let last = &rest[rest.len() - 1]["choices"][0];
    assert_eq!(last["delta"], json!({}));
    assert_eq!(last["finish_reason"], "length");
    let text: String = rest
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "Hi");
}

#[tokio::test]
async fn usage_comes_only_when_asked_for() {
    let front = start().await;
    for (options, in_each) in [
        (json!({}), None),
        (json!({"include_usage": false}), None),
        (
            json!({"include_usage": true, "continuous_usage_stats": true}),
            Some(true),
        ),
    ] {
        let body = chat(&json!({"stream": true, "stream_options": options}));
        let scheduler = async {
            let job = front.mock.job().await;
            job.tokens(&ids("ok"));
            job.finish(FinishReason::Stop, 2);
        };
        let ((_, text), ()) = tokio::join!(front.post("/v1/chat/completions", &body), scheduler);
        for chunk in chunks(&text) {
            let usage = chunk.get("usage").map(|usage| usage.is_object());
            assert_eq!(usage, in_each, "{options} {chunk}");
        }
    }
}

#[tokio::test]
async fn choices_have_seeds_of_their_own_and_stream_by_index() {
    let front = start().await;
    let body = chat(&json!({"n": 2, "seed": 11, "stream": true}));
    let scheduler = async {
        let (first, second) = (front.mock.job().await, front.mock.job().await);
        let seed = |job: &super::mock::Job| job.submit.sampling.as_ref().and_then(|s| s.seed);
        assert_eq!(seed(&first), Some(11));
        assert_ne!(seed(&second), Some(11));
        second.tokens(&ids("B"));
        first.tokens(&ids("A"));
        second.finish(FinishReason::Stop, 1);
        first.finish(FinishReason::Stop, 1);
        seed(&second)
    };
    let ((_, text), seed) = tokio::join!(front.post("/v1/chat/completions", &body), scheduler);
    let mut texts = [String::new(), String::new()];
    for chunk in chunks(&text) {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("index") as usize;
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(texts, ["A", "B"]);

    // Choice 1 of seed 11 is the same request again, even among more choices.
    let body = chat(&json!({"n": 3, "seed": 11}));
    let scheduler = async {
        let mut seeds = Vec::new();
        for _ in 0..3 {
            let job = front.mock.job().await;
            seeds.push(job.submit.sampling.as_ref().and_then(|s| s.seed));
            job.tokens(&ids("x"));
            job.finish(FinishReason::Stop, 1);
        }
        seeds
    };
    let (answer, seeds) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
    assert_eq!(seeds[1], seed);
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(3));
    // The prompt counts once; the output of every choice counts.
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

#[tokio::test]
async fn a_stop_string_across_tokens_is_never_shown_and_ends_the_request() {
    let front = start().await;
    for stream in [false, true] {
        let body = chat(&json!({"stop": ["END"], "stream": stream, "logprobs": true}));
        let scheduler = async {
            let job = front.mock.job().await;
            for character in "abENxEND".chars() {
                let token = id(character);
                job.send(Output {
                    logprobs: vec![logprob(token, Some(-0.5), &[])],
                    ..tokens(&[token])
                });
            }
            // The tokenizer-manager asks the scheduler to stop at once.
            assert_eq!(front.mock.stop().await, job.submit.request);
            job.finish(FinishReason::Stop, 8);
        };
        let ((status, text), ()) =
            tokio::join!(front.post("/v1/chat/completions", &body), scheduler);
        assert_eq!(status, 200);
        assert!(!text.contains("END"), "{text}");
        let chunks = if stream {
            chunks(&text)
        } else {
            vec![serde_json::from_str(&text).expect("json")]
        };
        let mut shown = String::new();
        let mut tokens = 0;
        for chunk in &chunks {
            let choice = &chunk["choices"][0];
            for field in ["delta", "message"] {
                shown.push_str(choice[field]["content"].as_str().unwrap_or_default());
            }
            tokens += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
        }
        assert_eq!(shown, "abENx");
        // The tokens of the stop string are not reported.
        assert_eq!(tokens, 5);
        let last = &chunks[chunks.len() - 1];
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        if !stream {
            assert_eq!(last["usage"]["completion_tokens"], 8);
            assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
        }
    }
}

#[tokio::test]
async fn logprobs_have_bytes_and_alternatives() {
    let front = start().await;
    let body = chat(&json!({"logprobs": true, "top_logprobs": 2}));
    // Two tokens that are one character only together: "é" is C3 A9.
    let (first, second) = (130, 105);
    let scheduler = async {
        let job = front.mock.job().await;
        let wanted = job.submit.logprobs.expect("logprobs");
        assert_eq!((wanted.output, wanted.top), (Some(true), Some(2)));
        let top = [(first, -0.25), (second, f32::NEG_INFINITY)];
        job.send(Output {
            logprobs: vec![logprob(first, Some(-0.25), &top)],
            ..tokens(&[first])
        });
        job.send(Output {
            logprobs: vec![logprob(second, Some(-1.0), &top)],
            ..tokens(&[second])
        });
        job.finish(FinishReason::Length, 2);
    };
    let (answer, ()) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"].as_str().map(str::len), Some(2));
    let content = choice["logprobs"]["content"].as_array().expect("content");
    assert_eq!(content.len(), 2);
    let joined: Vec<u64> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .filter_map(serde_json::Value::as_u64)
        .collect();
    assert_eq!(
        choice["message"]["content"].as_str().map(str::as_bytes),
        Some(
            joined
                .iter()
                .map(|byte| *byte as u8)
                .collect::<Vec<_>>()
                .as_slice()
        )
    );
    assert_eq!(content[0]["top_logprobs"][1]["logprob"], -9999.0);
    assert_eq!(content[1]["logprob"], -1.0);
}

#[tokio::test]
async fn without_a_limit_the_output_is_what_the_context_leaves() {
    let front = start().await;
    let body = chat(&json!({}));
    let scheduler = async {
        let job = front.mock.job().await;
        // Four draft tokens are reserved.
        let left = CONTEXT - job.submit.input_ids.len() - 4;
        assert_eq!(job.submit.max_new_tokens as usize, left);
        job.tokens(&ids("x"));
        job.finish(FinishReason::Stop, 1);
        left
    };
    let (_, left) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);

    let fits = chat(&json!({"max_completion_tokens": left}));
    let scheduler = async {
        let job = front.mock.job().await;
        job.tokens(&ids("x"));
        job.finish(FinishReason::Stop, 1);
    };
    tokio::join!(front.ok("/v1/chat/completions", &fits), scheduler);

    let too_long = chat(&json!({"max_completion_tokens": left + 1}));
    let (status, text) = front.post("/v1/chat/completions", &too_long).await;
    assert_eq!(status, 400);
    assert!(text.contains("context_length_exceeded") && text.contains("maximum context length"));
}

#[tokio::test]
async fn an_early_refusal_is_a_status_and_a_late_one_an_event() {
    let front = start().await;
    let body = chat(&json!({"stream": true}));
    let full = || lockstep_proto::pb::lockstep::RequestError {
        kind: lockstep_proto::pb::lockstep::ErrorKind::Overloaded.into(),
        message: "the queue is full".to_owned(),
        param: None,
        retry_after_s: Some(3),
    };
    let request = front
        .client
        .post(format!("{}/v1/chat/completions", front.url))
        .json(&body);
    let (response, ()) = tokio::join!(request.send(), async {
        front.mock.job().await.fail(full());
    });
    let response = response.expect("answered");
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "3");

    let ((status, text), ()) = tokio::join!(front.post("/v1/chat/completions", &body), async {
        let job = front.mock.job().await;
        job.tokens(&ids("Hi"));
        job.fail(full());
    });
    assert_eq!(status, 200);
    let events = super::client::events(&text);
    let last: serde_json::Value =
        serde_json::from_str(events.last().expect("events")).expect("json");
    assert_eq!(last["error"]["code"], "rate_limit_exceeded");
}

#[tokio::test]
async fn a_stop_token_counts_but_does_not_show() {
    let front = start().await;
    for (include, text) in [(false, "a"), (true, "ax")] {
        let body = chat(&json!({
            "stop_token_ids": [id('x')], "include_stop_str_in_output": include, "logprobs": true
        }));
        let scheduler = async {
            let job = front.mock.job().await;
            let mut output = super::mock::ended(FinishReason::Stop, job.usage(2), Some(id('x')));
            output.token_ids = ids("ax");
            output.logprobs = vec![
                logprob(id('a'), Some(-0.5), &[]),
                logprob(id('x'), Some(-1.5), &[]),
            ];
            job.send(output);
        };
        let (answer, ()) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], text);
        assert_eq!(choice["logprobs"]["content"][1]["logprob"], -1.5);
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test]
async fn tools_may_be_shown_without_being_called() {
    let front = start().await;
    let body = chat(&json!({
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none",
        "response_format": {"type": "text"}, "functions": null,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "user", "content": "Hello"}
        ]
    }));
    let scheduler = async {
        let job = front.mock.job().await;
        job.tokens(&ids("ok"));
        job.finish(FinishReason::Stop, 2);
    };
    let (answer, ()) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
    assert_eq!(answer["choices"][0]["message"]["content"], "ok");
}
