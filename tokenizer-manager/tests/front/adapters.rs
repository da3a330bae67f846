//! Adapters: named on every surface, listed among the models, loaded and unloaded by operators.

use std::{fs::create_dir, os::unix::fs::symlink};

use lockstep_proto::pb::lockstep::{
    ErrorKind, FinishReason, GenerateRequest, LoadedAdapter, RequestError, generate_request::Input,
};
use lockstep_types::AdapterLimits;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use super::{
    client::{chat, completion, with},
    grpc::client,
    harness::{Front, MODEL, start, start_with},
};

const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

/// Starts a front with adapters, of which the folders `a` and `b` may be loaded.
async fn start_adapted() -> (Front, TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["a", "b"] {
        create_dir(dir.path().join(name)).expect("made");
    }
    let path = dir.path().to_owned();
    let front = start_with(|engine, node| {
        engine.adapters = AdapterLimits { places: 2, rank: 8 };
        node.lora_dir = Some(path);
    });
    (front.await, dir)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("json")
}

/// Returns a body that names `model` for each HTTP route that generates and has that field.
fn bodies(model: &Value) -> [(&'static str, Value); 4] {
    let message = json!([{"role": "user", "content": "ab"}]);
    [
        ("/v1/chat/completions", chat(&json!({"model": model}))),
        ("/v1/completions", completion(&json!({"model": model}))),
        ("/v1/responses", json!({"model": model, "input": "ab"})),
        (
            "/v1/messages",
            json!({"model": model, "max_tokens": 4, "messages": message}),
        ),
    ]
}

#[tokio::test]
async fn an_adapter_is_named_on_every_surface_and_in_its_answers() {
    let (front, _dir) = start_adapted().await;
    for (model, adapter) in [
        (json!(MODEL), None),
        (json!("default"), None),
        (json!("sql"), Some("sql")),
        (json!(format!("{MODEL}:org/sql-2")), Some("org/sql-2")),
    ] {
        for (path, body) in bodies(&model) {
            let (answer, ()) = tokio::join!(front.ok(path, &body), async {
                let job = front.mock.job().await;
                assert_eq!(
                    job.submit.adapter_name.as_deref(),
                    adapter,
                    "{path} {model}"
                );
                job.finish(FinishReason::Stop, 0);
            });
            assert_eq!(answer["model"], adapter.unwrap_or(MODEL), "{path} {answer}");
        }
    }
    let mut client = client(&front).await;
    for (name, adapter) in [(None, None), (Some(""), None), (Some("sql"), Some("sql"))] {
        let request = GenerateRequest {
            input: Some(Input::Text("ab".to_owned())),
            adapter: name.map(str::to_owned),
            ..GenerateRequest::default()
        };
        let (answer, ()) = tokio::join!(client.generate(request), async {
            let job = front.mock.job().await;
            assert_eq!(job.submit.adapter_name.as_deref(), adapter);
            job.finish(FinishReason::Stop, 0);
        });
        answer.expect("served");
    }
}

#[tokio::test]
async fn texts_of_one_native_request_may_have_adapters_of_their_own() {
    let (front, _dir) = start_adapted().await;
    for (paths, expected) in [
        (json!("a"), [Some("a"), Some("a")]),
        (json!(["a", "b"]), [Some("a"), Some("b")]),
        (json!(["", "b"]), [None, Some("b")]),
        (json!(null), [None, None]),
    ] {
        let body = json!({"text": ["x", "y"], "lora_path": paths});
        tokio::join!(front.ok("/generate", &body), async {
            for adapter in expected {
                let job = front.mock.job().await;
                assert_eq!(job.submit.adapter_name.as_deref(), adapter, "{body}");
                job.finish(FinishReason::Stop, 0);
            }
        });
    }
}

/// The scheduler alone knows which adapters there are.
#[tokio::test]
async fn an_adapter_that_is_not_there_is_not_found() {
    let (front, _dir) = start_adapted().await;
    for stream in [false, true] {
        for (path, mut body) in bodies(&json!("gone")) {
            body["stream"] = stream.into();
            let ((status, text), ()) = tokio::join!(front.post(path, &body), async {
                let job = front.mock.job().await;
                job.fail(RequestError {
                    kind: ErrorKind::NotFound.into(),
                    message: "The model or adapter `gone` does not exist.".to_owned(),
                    param: Some("model".to_owned()),
                    retry_after_s: None,
                });
            });
            assert_eq!(status, 404, "{path} {text}");
            let error = &parsed(&text)["error"];
            assert!(
                error["message"]
                    .as_str()
                    .expect("a text")
                    .contains("`gone`")
            );
            match path {
                "/v1/messages" => assert_eq!(error["type"], "not_found_error"),
                _ => assert_eq!(error["code"], "model_not_found", "{path}"),
            }
        }
    }
}

#[tokio::test]
async fn a_name_that_no_adapter_can_have_reaches_no_scheduler() {
    let (front, _dir) = start_adapted().await;
    let long = "x".repeat(129);
    for name in ["a b", "a:b", "other:a:b", "\n", &long] {
        for (path, body) in bodies(&json!(name)) {
            let (status, text) = front.post(path, &body).await;
            assert_eq!(status, 404, "{path} {name:?}: {text}");
        }
        let body = json!({"text": "x", "lora_path": name});
        let (status, text) = front.post("/generate", &body).await;
        assert_eq!(status, 404, "{name:?}: {text}");
        assert_eq!(parsed(&text)["error"]["param"], "lora_path");
    }
    let without = start().await;
    for (path, body) in bodies(&json!("sql")) {
        let (status, text) = without.post(path, &body).await;
        assert_eq!(status, 404, "{path}: {text}");
    }
    let native = json!({"text": "x", "lora_path": "sql"});
    let (status, text) = without.post("/generate", &native).await;
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("--enable-lora"), "{text}");
    let request = GenerateRequest {
        input: Some(Input::Text("ab".to_owned())),
        adapter: Some("sql".to_owned()),
        ..GenerateRequest::default()
    };
    let refused = client(&without).await.generate(request).await;
    assert_eq!(
        refused.expect_err("no adapters").code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn adapters_are_listed_with_the_model_that_they_adapt() {
    let (front, _dir) = start_adapted().await;
    front
        .mock
        .adapters
        .lock()
        .expect("no panic")
        .push(LoadedAdapter {
            name: "org/sql".to_owned(),
            path: "/secret/folder".to_owned(),
            loaded: 1_700_000_000,
            ..LoadedAdapter::default()
        });
    let (_, text) = front.get("/v1/models").await;
    let models = &parsed(&text)["data"];
    assert_eq!(models[0]["id"], MODEL);
    assert_eq!(models[0]["parent"], Value::Null);
    let adapter = &models[1];
    assert_eq!(adapter["id"], "org/sql");
    assert_eq!(
        (&adapter["parent"], &adapter["root"]),
        (&json!(MODEL), &json!(MODEL))
    );
    assert_eq!(adapter["created"], 1_700_000_000);
    assert!(!text.contains("secret"), "paths are the operator's: {text}");
    let (_, one) = front.get("/v1/models/org/sql").await;
    assert_eq!(parsed(&one), *adapter);
    assert_eq!(front.get("/v1/models/other").await.0, 404);
    // Where nothing is generated the name is looked for here.
    for (model, status) in [("org/sql", 200), (MODEL, 200), ("other", 404)] {
        let body = json!({"model": model, "prompt": "ab"});
        assert_eq!(front.post("/tokenize", &body).await.0, status, "{model}");
    }
}

#[tokio::test]
async fn operators_load_and_unload_adapters() {
    let (front, dir) = start_adapted().await;
    let real = dir.path().canonicalize().expect("real");
    for (load, unload) in [
        (LOAD, UNLOAD),
        ("/load_lora_adapter", "/unload_lora_adapter"),
    ] {
        for path in [json!("a"), json!(dir.path().join("a"))] {
            let body = json!({"lora_name": "sql", "lora_path": path, "pinned": true});
            let answer = front.ok(load, &body).await;
            assert_eq!(answer["success"], true);
            assert_eq!(answer["loaded_adapters"], json!({"sql": real.join("a")}));
            let answer = front.ok(unload, &json!({"lora_name": "sql"})).await;
            assert_eq!(answer["loaded_adapters"], json!({}));
        }
        let (status, text) = front.post(unload, &json!({"lora_name": "sql"})).await;
        assert_eq!(status, 404, "{text}");
        assert_eq!(parsed(&text)["success"], false);
        let (status, text) = front
            .post(load, &json!({"lora_name": "full", "lora_path": "b"}))
            .await;
        assert_eq!(status, 409, "{text}");
        assert_eq!(parsed(&text)["error"]["message"], "all places are taken");
    }
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_by_name() {
    let (front, dir) = start_adapted().await;
    let outside = tempfile::tempdir().expect("a folder");
    symlink(outside.path(), dir.path().join("link")).expect("linked");
    let load = |name: Value, path: Value| json!({"lora_name": name, "lora_path": path});
    for (body, param) in [
        (json!({}), "lora_name"),
        (json!({"lora_name": "a"}), "lora_path"),
        (load(json!(5), json!("a")), "lora_name"),
        (load(json!(""), json!("a")), "lora_name"),
        (load(json!("a:b"), json!("a")), "lora_name"),
        (load(json!("x".repeat(129)), json!("a")), "lora_name"),
        (load(json!("x"), json!("none")), "lora_path"),
        (load(json!("x"), json!("link")), "lora_path"),
        (load(json!("x"), json!(outside.path())), "lora_path"),
        (load(json!("x"), json!("../a")), "lora_path"),
        (load(json!("x"), json!("")), "lora_path"),
        (
            with(
                load(json!("x"), json!("a")),
                &json!({"load_inplace": false}),
            ),
            "load_inplace",
        ),
    ] {
        let (status, text) = front.post(LOAD, &body).await;
        assert_eq!(status, 400, "{body}: {text}");
        assert_eq!(parsed(&text)["error"]["param"], param, "{body}: {text}");
    }
    assert!(front.mock.adapters.lock().expect("no panic").is_empty());
    let (status, text) = front.post(UNLOAD, &json!({"lora_name": "a b"})).await;
    assert_eq!(status, 400, "{text}");
}

#[tokio::test]
async fn a_server_without_a_folder_of_adapters_loads_none() {
    let front = start_with(|engine, node| {
        engine.server.api_key_required = true;
        engine.adapters = AdapterLimits { places: 2, rank: 8 };
        node.admin_api_key = Some("operators".to_owned());
        node.api_key = Some("clients".to_owned());
    })
    .await;
    for path in [LOAD, UNLOAD, "/load_lora_adapter", "/unload_lora_adapter"] {
        assert_eq!(front.post(path, &json!({})).await.0, 401, "{path}");
    }
    let front = start().await;
    let (status, text) = front.post(LOAD, &json!("no object")).await;
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("--lora-dir"), "{text}");
}
