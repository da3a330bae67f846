//! Speculation per request: the limits that it may set, and the counts in its answer.

use lockstep_proto::pb::lockstep::{
    FinishReason, GenerateRequest, Output, SpeculationUsage, Speculative, generate_request::Input,
};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    client::{chat, chunks, completion, with},
    grpc::client,
    harness::{Front, start, start_with},
    mock::{Job, ended, ids},
};

/// Starts a front whose engine drafts three tokens at a time.
async fn speculating() -> Front {
    start_with(|engine, _| {
        engine.speculation.algorithm = Some("EAGLE3".to_owned());
        engine.speculation.num_steps = 3;
        engine.speculation.num_draft_tokens = 4;
    })
    .await
}

/// Ends a choice of one token with counts of speculation.
fn finish(job: &Job, verify_steps: u32, draft_tokens: u32, proposed: &[u32], accepted: &[u32]) {
    job.tokens(&ids("x"));
    let mut last = ended(FinishReason::Stop, job.usage(1), None);
    if let Some(finish) = &mut last.finish {
        finish.speculation = Some(SpeculationUsage {
            verify_steps,
            draft_tokens,
            proposed: proposed.to_vec(),
            accepted: accepted.to_vec(),
        });
    }
    job.send(last);
}

fn native(fields: &Value) -> Value {
    with(json!({"text": "ab"}), fields)
}

fn grpc(speculative: Option<Speculative>) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Text("ab".to_owned())),
        max_new_tokens: Some(4),
        speculative,
        ..GenerateRequest::default()
    }
}

#[tokio::test]
async fn a_request_caps_its_depth_on_every_surface() {
    let front = speculating().await;
    let mut client = client(&front).await;
    for (enabled, max_steps, expected) in [
        (None, None, None),
        (Some(true), None, None),
        (Some(true), Some(2), Some(2)),
        (None, Some(0), Some(0)),
        (Some(false), None, Some(0)),
        (Some(false), Some(5), Some(0)),
    ] {
        let fields = json!({"speculative": {"enabled": enabled, "max_steps": max_steps}});
        for (path, body) in [
            ("/v1/chat/completions", chat(&fields)),
            ("/v1/completions", completion(&fields)),
            ("/generate", native(&fields)),
        ] {
            tokio::join!(front.ok(path, &body), async {
                let job = front.mock.job().await;
                assert_eq!(job.submit.max_draft_steps, expected, "{path} {fields}");
                job.finish(FinishReason::Stop, 0);
            });
        }
        let request = grpc(Some(Speculative { enabled, max_steps }));
        let (answer, ()) = tokio::join!(client.generate(request), async {
            let job = front.mock.job().await;
            assert_eq!(job.submit.max_draft_steps, expected, "grpc {fields}");
            job.finish(FinishReason::Stop, 0);
        });
        answer.expect("served");
    }
}

#[tokio::test]
async fn a_batch_takes_one_cap_for_each_prompt() {
    let front = speculating().await;
    let body = json!({
        "text": ["a", "b"], "speculative": [{"max_steps": 1}, {"enabled": false}]
    });
    tokio::join!(front.ok("/generate", &body), async {
        for expected in [1, 0] {
            let job = front.mock.job().await;
            assert_eq!(job.submit.max_draft_steps, Some(expected));
            job.finish(FinishReason::Stop, 0);
        }
    });
}

/// Returns the error's parameter.
async fn refused(front: &Front, path: &str, body: &Value) -> String {
    let (status, text) = front.post(path, body).await;
    assert_eq!(status, 400, "{path} {body}: {text}");
    let error: Value = serde_json::from_str(&text).expect("json");
    let param = error["error"]["param"].as_str().expect("a parameter");
    param.to_owned()
}

#[tokio::test]
async fn wrong_wishes_are_refused_by_name() {
    let front = speculating().await;
    for (value, param) in [
        (json!({"max_steps": -1}), "speculative.max_steps"),
        (json!({"max_steps": 65}), "speculative.max_steps"),
        (json!({"max_steps": 1.5}), "speculative.max_steps"),
        (json!({"max_steps": "3"}), "speculative.max_steps"),
        (
            json!({"enabled": false, "max_steps": 65}),
            "speculative.max_steps",
        ),
        (json!({"enabled": 1}), "speculative.enabled"),
        (json!({"enable": true}), "speculative.enable"),
        (json!({"num_steps": 3}), "speculative.num_steps"),
        (json!(true), "speculative"),
        (json!(3), "speculative"),
    ] {
        let fields = json!({"speculative": value});
        for (path, body) in [
            ("/v1/chat/completions", chat(&fields)),
            ("/v1/completions", completion(&fields)),
            ("/generate", native(&fields)),
        ] {
            assert_eq!(refused(&front, path, &body).await, param, "{path} {body}");
        }
    }
    let body = native(&json!({"sampling_params": {"speculative": {"enabled": false}}}));
    let param = refused(&front, "/generate", &body).await;
    assert_eq!(param, "sampling_params.speculative");
    let request = grpc(Some(Speculative {
        enabled: None,
        max_steps: Some(65),
    }));
    let status = client(&front).await.generate(request).await;
    let status = status.expect_err("too deep");
    assert_eq!(status.code(), Code::InvalidArgument);
    let param = status.metadata().get("param");
    assert_eq!(param.expect("a parameter"), "speculative.max_steps");
}

#[tokio::test]
async fn without_speculation_only_none_can_be_asked_for() {
    let front = start().await;
    for (value, param) in [
        (json!({"enabled": true}), "speculative.enabled"),
        (json!({"max_steps": 1}), "speculative.max_steps"),
    ] {
        let body = chat(&json!({"speculative": value}));
        let (status, text) = front.post("/v1/chat/completions", &body).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.contains("--speculative-algorithm"), "{text}");
        assert!(text.contains(param), "{text}");
    }
    for value in [
        json!({"enabled": false}),
        json!({"max_steps": 0}),
        json!({}),
    ] {
        let body = chat(&json!({"speculative": value}));
        let (answer, ()) = tokio::join!(front.ok("/v1/chat/completions", &body), async {
            front.mock.job().await.finish(FinishReason::Stop, 0);
        });
        let usage = answer["usage"].as_object().expect("counts");
        // Nothing was verified.
        assert!(!usage.contains_key("speculative"), "{answer}");
        assert!(!usage.contains_key("completion_tokens_details"), "{answer}");
    }
}

fn sums() -> (Value, Value) {
    let details = json!({"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 10});
    let speculative = json!({
        "verify_steps": 5, "draft_tokens": 15, "accepted_tokens": 5,
        "proposed_per_position": [5, 5, 2], "accepted_per_position": [3, 2, 0],
    });
    (details, speculative)
}

/// Answers two choices, with two and with three verifications.
async fn two_choices(front: &Front) {
    let (first, second) = (front.mock.job().await, front.mock.job().await);
    finish(&first, 2, 6, &[2, 2, 2], &[2, 1]);
    finish(&second, 3, 9, &[3, 3], &[1, 1]);
}

#[tokio::test]
async fn counts_are_summed_over_choices() {
    let front = speculating().await;
    let fields = json!({"n": 2});
    for (path, body) in [
        ("/v1/chat/completions", chat(&fields)),
        ("/v1/completions", completion(&fields)),
    ] {
        let (answer, ()) = tokio::join!(front.ok(path, &body), two_choices(&front));
        let usage = &answer["usage"];
        let (details, speculative) = sums();
        assert_eq!(usage["completion_tokens_details"], details, "{path}");
        assert_eq!(usage["speculative"], speculative, "{path}");
    }
}

#[tokio::test]
async fn a_streams_last_chunk_has_the_counts() {
    let front = speculating().await;
    let fields = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    for (path, body) in [
        ("/v1/chat/completions", chat(&fields)),
        ("/v1/completions", completion(&fields)),
    ] {
        let ((_, text), ()) = tokio::join!(front.post(path, &body), two_choices(&front));
        let chunks = chunks(&text);
        let (last, others) = chunks.split_last().expect("chunks");
        let (details, speculative) = sums();
        assert_eq!(last["usage"]["completion_tokens_details"], details);
        assert_eq!(last["usage"]["speculative"], speculative);
        assert!(others.iter().all(|chunk| chunk["usage"].is_null()));
    }
}

#[tokio::test]
async fn a_stop_string_does_not_lose_the_counts() {
    let front = speculating().await;
    let body = completion(&json!({"stop": "x"}));
    let (answer, ()) = tokio::join!(front.ok("/v1/completions", &body), async {
        let job = front.mock.job().await;
        job.tokens(&ids("x"));
        front.mock.stop().await;
        finish(&job, 1, 3, &[1, 1, 1], &[1]);
    });
    assert_eq!(answer["choices"][0]["text"], "");
    assert_eq!(
        answer["usage"]["speculative"]["accepted_per_position"],
        json!([1, 0, 0])
    );
}

#[tokio::test]
async fn the_native_answer_has_sglangs_names() {
    let front = speculating().await;
    let body = native(&json!({}));
    let (answer, ()) = tokio::join!(front.ok("/generate", &body), async {
        let job = front.mock.job().await;
        finish(&job, 2, 6, &[2, 2, 2], &[2, 1]);
    });
    let meta = &answer["meta_info"];
    for (name, value) in [
        ("spec_verify_ct", json!(2)),
        ("spec_num_proposed_drafts", json!(6)),
        ("spec_num_correct_drafts", json!(3)),
        ("spec_accept_rate", json!(0.5)),
        ("spec_accept_length", json!(2.5)),
        ("spec_correct_drafts_histogram", json!([0, 1, 1, 0])),
    ] {
        assert_eq!(meta[name], value, "{name}");
    }
    let (answer, ()) = tokio::join!(front.ok("/generate", &body), async {
        front.mock.job().await.finish(FinishReason::Stop, 0);
    });
    let meta = answer["meta_info"].as_object().expect("an object");
    assert!(
        !meta.keys().any(|name| name.starts_with("spec_")),
        "{meta:?}"
    );
}

#[tokio::test]
async fn grpc_answers_end_with_the_counts() {
    let front = speculating().await;
    let mut client = client(&front).await;
    let (stream, ()) = tokio::join!(client.generate(grpc(None)), async {
        let job = front.mock.job().await;
        job.send(Output::default());
        finish(&job, 2, 6, &[2, 2, 2], &[2, 1]);
    });
    let mut stream = stream.expect("served").into_inner();
    let mut last = None;
    while let Some(answer) = stream.message().await.expect("a message") {
        assert!(last.is_none(), "counts come with the last message only");
        last = answer.speculation;
    }
    let counts = last.expect("counts");
    assert_eq!((counts.verify_steps, counts.draft_tokens), (2, 6));
    assert_eq!(counts.accepted, [2, 1]);
}
