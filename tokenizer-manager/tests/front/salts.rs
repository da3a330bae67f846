//! Salts of the prefix cache: read on every surface, and bounded.

use lockstep_proto::pb::lockstep::{FinishReason, GenerateRequest, generate_request::Input};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    client::{chat, completion, with},
    grpc::client,
    harness::start,
};

/// Returns a body with these fields for each HTTP route that generates.
fn bodies(fields: &Value) -> [(&'static str, Value); 3] {
    [
        ("/v1/chat/completions", chat(fields)),
        ("/v1/completions", completion(fields)),
        ("/generate", with(json!({"text": "ab"}), fields)),
    ]
}

fn grpc(cache_salt: Option<&str>) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Text("ab".to_owned())),
        max_new_tokens: Some(4),
        cache_salt: cache_salt.map(str::to_owned),
        ..GenerateRequest::default()
    }
}

#[tokio::test]
async fn a_salt_is_taken_on_every_surface() {
    let front = start().await;
    let mut client = client(&front).await;
    let longest = "ä".repeat(128);
    for (fields, expected) in [
        (json!({}), None),
        (json!({"cache_salt": null}), None),
        (json!({"cache_salt": "a b"}), Some("a b")),
        // SGLang's name of it.
        (json!({"extra_key": "x"}), Some("x")),
        (json!({"cache_salt": longest}), Some(&*longest)),
    ] {
        for (path, body) in bodies(&fields) {
            tokio::join!(front.ok(path, &body), async {
                let job = front.mock.job().await;
                let found = job.submit.cache_salt.as_deref();
                assert_eq!(found, expected, "{path} {fields}");
                job.finish(FinishReason::Stop, 0);
            });
        }
        let (answer, ()) = tokio::join!(client.generate(grpc(expected)), async {
            let job = front.mock.job().await;
            assert_eq!(job.submit.cache_salt.as_deref(), expected, "grpc");
            job.finish(FinishReason::Stop, 0);
        });
        answer.expect("served");
    }
}

#[tokio::test]
async fn choices_have_one_salt_and_texts_may_have_their_own() {
    let front = start().await;
    for (path, body, salts) in [
        (
            "/v1/completions",
            completion(&json!({"n": 2, "cache_salt": "a"})),
            ["a", "a"],
        ),
        (
            "/generate",
            json!({"text": ["a", "b"], "cache_salt": "a"}),
            ["a", "a"],
        ),
        (
            "/generate",
            json!({"text": ["a", "b"], "extra_key": ["a", "b"]}),
            ["a", "b"],
        ),
    ] {
        tokio::join!(front.ok(path, &body), async {
            for salt in salts {
                let job = front.mock.job().await;
                assert_eq!(job.submit.cache_salt.as_deref(), Some(salt), "{body}");
                job.finish(FinishReason::Stop, 0);
            }
        });
    }
}

#[tokio::test]
async fn wrong_salts_are_refused_by_name() {
    let front = start().await;
    let long = "x".repeat(257);
    for wrong in [json!(""), json!(long), json!(5), json!({"a": 1})] {
        for (path, body) in bodies(&json!({"cache_salt": wrong})) {
            let (status, text) = front.post(path, &body).await;
            assert_eq!(status, 400, "{path} {wrong}: {text}");
            let error: Value = serde_json::from_str(&text).expect("json");
            assert_eq!(error["error"]["param"], "cache_salt", "{path} {text}");
        }
    }
    for body in [
        json!({"text": ["a", "b"], "cache_salt": ["a"]}),
        json!({"text": ["a", "b"], "cache_salt": ["a", ""]}),
        json!({"text": "a", "cache_salt": "a", "extra_key": "b"}),
        json!({"text": "a", "sampling_params": {"cache_salt": "a"}}),
    ] {
        let (status, text) = front.post("/generate", &body).await;
        assert_eq!(status, 400, "{body}: {text}");
        assert!(text.contains("cache_salt"), "{body}: {text}");
    }
    for wrong in ["", &long] {
        let status = client(&front).await.generate(grpc(Some(wrong))).await;
        let status = status.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        let param = status.metadata().get("param");
        assert_eq!(param.expect("a parameter"), "cache_salt");
    }
}

/// A value that is given once is copied for each prompt. It is checked before anything is copied:
/// the errors of lists, which are found while values are copied, come later.
#[tokio::test]
async fn what_all_prompts_share_is_checked_before_it_is_copied() {
    let front = start().await;
    let long = "x".repeat(2_000);
    for (field, value, name) in [
        ("cache_salt", json!(long), "cache_salt"),
        ("rid", json!(long), "rid"),
        (
            "sampling_params",
            json!({"stop": long}),
            "sampling_params.stop",
        ),
        (
            "sampling_params",
            json!({"stop_token_ids": vec![1; 20]}),
            "sampling_params.stop_token_ids",
        ),
    ] {
        let mut body = json!({"text": ["a", "b"], "return_logprob": [true]});
        body[field] = value;
        let (status, text) = front.post("/generate", &body).await;
        assert_eq!(status, 400, "{name}: {text}");
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(error["error"]["param"], name, "{text}");
    }
}
