//! Requests that deviate slightly from OpenAI's form, as clients write them.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use lockstep_proto::pb::lockstep::FinishReason;
use serde_json::{Value, json};

use super::{
    client::{chat, completion},
    harness::{Front, MODEL, start, start_with},
    mock::ids,
};

/// Sends a generating request, answers it, and returns the request that reached the
/// scheduler.
async fn submitted(
    front: &Front,
    path: &str,
    body: &Value,
) -> lockstep_proto::pb::lockstep::Submit {
    let scheduler = async {
        let job = front.mock.job().await;
        job.tokens(&ids("a"));
        job.finish(FinishReason::Stop, 1);
        job.submit.clone()
    };
    let (_, submit) = tokio::join!(front.ok(path, body), scheduler);
    submit
}

#[tokio::test]
async fn whole_numbers_may_have_a_point() {
    let front = start().await;
    let fields = json!({"max_tokens": 4.0, "n": 1.0, "top_k": 3.0, "seed": 7.0, "min_tokens": 1e0,
                        "best_of": 1.0});
    for body in [chat(&fields), completion(&fields)] {
        let path = if body["prompt"].is_null() {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        };
        let submit = submitted(&front, path, &body).await;
        let sampling = submit.sampling.expect("set");
        assert_eq!((sampling.top_k, sampling.seed), (Some(3), Some(7)));
        assert_eq!(submit.max_new_tokens, 4);
    }
    let native = json!({"text": "a", "top_logprobs_num": 2.0, "return_logprob": true,
        "sampling_params": {"max_new_tokens": 4.0, "n": 1.0, "sampling_seed": 5.0}});
    assert_eq!(
        submitted(&front, "/generate", &native).await.max_new_tokens,
        4
    );
    for wrong in [
        json!({"max_tokens": 4.5}),
        json!({"n": 1e300}),
        json!({"seed": 0.5}),
    ] {
        let (status, text) = front.post("/v1/chat/completions", &chat(&wrong)).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(text.contains("expected an integer"), "{text}");
    }
}

#[tokio::test]
async fn an_empty_nucleus_is_greedy() {
    let front = start().await;
    for fields in [
        json!({"top_p": 0}),
        json!({"top_p": 0.0, "temperature": 1.5}),
    ] {
        let submit = submitted(&front, "/v1/chat/completions", &chat(&fields)).await;
        let sampling = submit.sampling.expect("set");
        assert_eq!(sampling.temperature, Some(0.0), "{fields}");
        assert_eq!(sampling.top_p.unwrap_or(1.0), 1.0, "{fields}");
    }
    let wrong = chat(&json!({"top_p": 0, "temperature": 9}));
    assert_eq!(front.post("/v1/chat/completions", &wrong).await.0, 400);
}

#[tokio::test]
async fn the_only_model_needs_no_name_and_may_have_several() {
    let front = start_with(|engine, _| {
        engine.server.served_model_aliases = vec!["gpt-4o".into(), "a/b".into()];
    })
    .await;
    for model in [
        json!(null),
        json!(""),
        json!("default"),
        json!("gpt-4o"),
        json!("a/b"),
    ] {
        let body = chat(&json!({"model": model}));
        let scheduler = async {
            front.mock.job().await.finish(FinishReason::Stop, 0);
        };
        let (answer, ()) = tokio::join!(front.ok("/v1/chat/completions", &body), scheduler);
        assert_eq!(answer["model"], MODEL, "the first name, as vLLM has it");
    }
    let other = chat(&json!({"model": "other"}));
    let (status, text) = front.post("/v1/chat/completions", &other).await;
    assert_eq!(status, 404);
    assert!(
        text.contains("`demo`") && text.contains("`gpt-4o`"),
        "{text}"
    );
    let list: Value = serde_json::from_str(&front.get("/v1/models").await.1).expect("json");
    let named: Vec<_> = list["data"].as_array().expect("models").iter().collect();
    let ids: Vec<_> = named.iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["demo", "gpt-4o", "a/b"]);
    assert!(named.iter().all(|model| model["root"] == MODEL));
    for id in ["demo", "gpt-4o", "a/b"] {
        assert_eq!(front.get(&format!("/v1/models/{id}")).await.0, 200, "{id}");
    }
}

#[tokio::test]
async fn bodies_may_be_compressed_and_stay_bounded() {
    let front = start().await;
    let limit = front.context.engine.server.limits.body_bytes;
    let send = async |text: &str, encoding: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).expect("written");
        let request = front
            .client
            .post(format!("{}/tokenize", front.url))
            .header("content-type", "application/json")
            .header("content-encoding", encoding)
            .body(encoder.finish().expect("written"));
        request.send().await.expect("answered").status().as_u16()
    };
    let body = json!({"prompt": "a"}).to_string();
    assert_eq!(send(&body, "gzip").await, 200);
    assert_eq!(send(&body, "br").await, 415);
    assert_eq!(send(&body, "identity").await, 400);
    let padded = |bytes: usize| format!("{body}{}", " ".repeat(bytes - body.len()));
    assert_eq!(send(&padded(limit), "gzip").await, 200);
    assert_eq!(send(&padded(limit + 1), "gzip").await, 413);
    assert_eq!(
        send(&"[".repeat(1000), "gzip").await,
        400,
        "nested too deep"
    );
}

/// Sends a compressed completion of one token whose body decodes to `bytes` bytes, and
/// returns the status.
async fn compressed(front: &Front, bytes: usize) -> u16 {
    let body = completion(&json!({"max_tokens": 1})).to_string();
    let padding = " ".repeat(bytes - body.len());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    write!(encoder, "{body}{padding}").expect("written");
    let request = front
        .client
        .post(format!("{}/v1/completions", front.url))
        .header("content-type", "application/json")
        .header("content-encoding", "gzip")
        .body(encoder.finish().expect("written"));
    request.send().await.expect("answered").status().as_u16()
}

#[tokio::test]
async fn what_bodies_inflate_to_is_charged_while_requests_hold_it() {
    let front = start_with(|engine, _| {
        // One address may hold half of this.
        engine.server.limits.memory_bytes = 2 << 20;
        engine.server.limits.body_bytes = 1 << 20;
    })
    .await;
    // This body alone exceeds the share of large requests.
    assert_eq!(compressed(&front, 900 << 10).await, 429);
    // Three leave no room for a fourth until they are answered.
    let requests = async { tokio::join!(held(&front), held(&front), held(&front)) };
    let scheduler = async {
        let jobs = [
            front.mock.job().await,
            front.mock.job().await,
            front.mock.job().await,
        ];
        assert_eq!(compressed(&front, 250 << 10).await, 429);
        jobs.iter()
            .for_each(|job| job.finish(FinishReason::Stop, 0));
    };
    let (statuses, ()) = tokio::join!(requests, scheduler);
    assert_eq!(statuses, (200, 200, 200));
    let again = async { front.mock.job().await.finish(FinishReason::Stop, 0) };
    let (status, ()) = tokio::join!(held(&front), again);
    assert_eq!(status, 200, "all is given back");
}

async fn held(front: &Front) -> u16 {
    compressed(front, 250 << 10).await
}

#[tokio::test]
async fn what_json_becomes_is_charged() {
    // An address may hold half of this, and large requests three quarters of that half.
    let front = start_with(|engine, _| engine.server.limits.memory_bytes = 2 << 20).await;
    let tokenize = async |lists: usize| {
        let body = json!({"prompt": "a", "chat_template_kwargs": {"a": vec![json!([]); lists]}});
        front.post("/tokenize", &body).await.0
    };
    // A body of some 9 KB of JSON takes hundreds of bytes for each list.
    assert_eq!(tokenize(3_000).await, 200);
    assert_eq!(tokenize(3_600).await, 429);
    assert_eq!(tokenize(3_000).await, 200, "all is given back");
}

#[tokio::test]
async fn what_is_not_served_says_what_is() {
    let front = start().await;
    for (path, word) in [
        ("/v1/threads", "/v1/chat/completions"),
        ("/v1/embeddings", "generates text"),
        ("/v1/rerank", "generates text"),
        ("/rerank", "generates text"),
        ("/v1/audio/speech", "generates text"),
        ("/api/chat", "/v1/chat/completions"),
    ] {
        let (status, text) = front.post(path, &json!({"model": MODEL})).await;
        assert_eq!(status, 404, "{path}");
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(error["error"]["code"], "endpoint_not_served", "{path}");
        let message = error["error"]["message"].as_str().expect("said");
        assert!(
            message.contains(path) && message.contains(word),
            "{message}"
        );
    }
    let (status, text) = front.get("/nothing").await;
    assert_eq!(status, 404);
    assert!(text.contains("Invalid URL"), "{text}");
}
