//! Update of the weights while the server runs.

use std::{fs::create_dir, os::unix::fs::symlink, time::Duration};

use lockstep_proto::pb::lockstep::{
    ErrorKind, FinishReason, RequestError, UpdateWeightsRequest, UpdateWeightsResponse,
    WeightsInUse,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    harness::{Front, start, start_with},
    mock::ids,
};

const PATH: &str = "/update_weights_from_disk";

/// Starts a front that allows updates from the folders `new` and `head`, and from
/// others that the test makes.
async fn start_updatable() -> (Front, TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["new", "head"] {
        create_dir(dir.path().join(name)).expect("made");
    }
    let path = dir.path().to_owned();
    let front = start_with(|_, node| node.weight_update_dir = Some(path)).await;
    (front, dir)
}

async fn model_info(front: &Front) -> Value {
    serde_json::from_str(&front.get("/model_info").await.1).expect("json")
}

#[tokio::test]
async fn target_and_draft_are_updated_together() {
    let (front, dir) = start_updatable().await;
    let real = dir.path().canonicalize().expect("real");
    let real = |name| real.join(name).to_str().expect("UTF-8").to_owned();
    let before = model_info(&front).await;
    assert_eq!(before["weight_version"], "default");
    for field in ["draft_model_path", "speculative_draft_model_path"] {
        let body = json!({
            "model_path": "new", field: dir.path().join("head"), "abort_all_requests": true,
            "flush_cache": true, "weight_version": "v2", "load_format": "auto",
        });
        let (answer, ()) = tokio::join!(front.ok(PATH, &body), async {
            let (update, reply) = front.mock.update().await;
            let expected = UpdateWeightsRequest {
                model_path: real("new"),
                draft_path: Some(real("head")),
                abort_all: true,
                version: Some("v2".to_owned()),
            };
            assert_eq!(update, expected);
            let answer = UpdateWeightsResponse {
                error: None,
                paused_requests: 3,
            };
            reply.send(answer).expect("awaited");
        });
        assert_eq!(answer["success"], true);
        assert_eq!(answer["num_paused_requests"], 3);
        assert!(answer["message"].is_string());
    }
}

#[tokio::test]
async fn answers_name_the_weights_they_come_of() {
    let front = start_with(|engine, _| {
        engine.speculation.algorithm = Some("EAGLE3".to_owned());
        engine.speculation.num_steps = 3;
    })
    .await;
    let body = json!({"text": "ab"});
    for version in ["default", "v2"] {
        let (answer, ()) = tokio::join!(front.ok("/generate", &body), async {
            // The request waits while the weights change.
            let job = front.mock.job().await;
            if version != "default" {
                front.mock.announce(WeightsInUse {
                    model_path: "/models/new".to_owned(),
                    draft_path: Some("/models/head".to_owned()),
                    version: version.to_owned(),
                });
            }
            job.tokens(&ids("x"));
            job.finish(FinishReason::Stop, 1);
            // A later update changes nothing of this answer, however late the answer is
            // read.
            if version != "default" {
                front.mock.announce(WeightsInUse {
                    model_path: "/models/newer".to_owned(),
                    draft_path: Some("/models/head".to_owned()),
                    version: "v3".to_owned(),
                });
            }
        });
        assert_eq!(answer["meta_info"]["weight_version"], version);
    }
    let info = loop {
        let info = model_info(&front).await;
        if info["weight_version"] == "v3" {
            break info;
        }
    };
    assert_eq!(info["model_path"], "/models/newer");
    assert_eq!(info["quantization"], "none");
    assert_eq!(info["checkpoint"], Value::Null);
    let speculative = &info["speculative"];
    assert_eq!(speculative["algorithm"], "EAGLE3");
    assert_eq!(speculative["draft_model_path"], "/models/head");
    let (_, text) = front.get("/server_info").await;
    let server: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(server["weights"]["version"], "v3");
    assert_eq!(server["config"]["speculation"]["num_steps"], 3);
    assert_eq!(server["config"]["model"]["quantization"], "none");
}

/// An engine that was started anew has the weights that it starts with.
#[tokio::test]
async fn the_next_scheduler_says_which_weights_it_has() {
    let front = start().await;
    let until =
        async |version: &str| while model_info(&front).await["weight_version"] != version {};
    let follow = async {
        front.mock.announce(WeightsInUse {
            model_path: "/models/new".to_owned(),
            draft_path: None,
            version: "v2".to_owned(),
        });
        until("v2").await;
        front.mock.disconnect();
        until("default").await;
    };
    let followed = tokio::time::timeout(Duration::from_secs(30), follow).await;
    followed.expect("what was before is forgotten");
}

#[tokio::test]
async fn a_refusal_has_sglangs_fields_and_the_error_object() {
    let (front, _dir) = start_updatable().await;
    let body = json!({"model_path": "new"});
    let ((status, text), ()) = tokio::join!(front.post(PATH, &body), async {
        let (update, reply) = front.mock.update().await;
        assert_eq!((update.draft_path, update.abort_all), (None, false));
        let error = RequestError {
            kind: ErrorKind::Invalid.into(),
            message: "hidden_size is 512, not 256".to_owned(),
            ..RequestError::default()
        };
        let answer = UpdateWeightsResponse {
            error: Some(error),
            paused_requests: 0,
        };
        reply.send(answer).expect("awaited");
    });
    assert_eq!(status, 400, "{text}");
    let answer: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(answer["success"], false);
    assert_eq!(answer["message"], "hidden_size is 512, not 256");
    assert_eq!(answer["num_paused_requests"], 0);
    assert_eq!(answer["error"]["message"], answer["message"]);
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_by_name() {
    let (front, _dir) = start_updatable().await;
    for (fields, param) in [
        (json!({}), "model_path"),
        (json!({"model_path": 5}), "model_path"),
        (
            json!({"model_path": "new", "draft_model_path": "head", "speculative_draft_model_path": "other"}),
            "speculative_draft_model_path",
        ),
        (
            json!({"model_path": "new", "flush_cache": false}),
            "flush_cache",
        ),
        (
            json!({"model_path": "new", "load_format": "gguf"}),
            "load_format",
        ),
        (json!({"model_path": "new", "is_async": true}), "is_async"),
        (
            json!({"model_path": "new", "keep_pause": true}),
            "keep_pause",
        ),
        (
            json!({"model_path": "new", "weight_version": "a b"}),
            "weight_version",
        ),
        (
            json!({"model_path": "new", "abort_all_requests": "yes"}),
            "abort_all_requests",
        ),
    ] {
        let (status, text) = front.post(PATH, &fields).await;
        assert_eq!(status, 400, "{fields}: {text}");
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(error["error"]["param"], param, "{fields}: {text}");
    }
}

#[tokio::test]
async fn it_asks_for_the_key() {
    let front = start_with(|engine, node| {
        engine.server.api_key_required = true;
        node.api_key = Some("secret".to_owned());
    })
    .await;
    let body = json!({"model_path": "a"});
    let (status, _) = front.post(PATH, &body).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn a_server_without_a_folder_for_it_refuses_whatever_is_asked() {
    let front = start().await;
    for body in [
        json!({"model_path": "/"}),
        json!({"model_path": "/none"}),
        json!({}),
        json!("no object"),
    ] {
        let (status, text) = front.post(PATH, &body).await;
        assert_eq!(status, 403, "{body}: {text}");
        let answer: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(answer["success"], false);
        let error = &answer["error"];
        assert_eq!(error["type"], "permission_error");
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains("--weight-update-dir"), "{message}");
    }
}

#[tokio::test]
async fn what_is_outside_looks_as_if_it_were_not_there() {
    let (front, dir) = start_updatable().await;
    let outside = tempfile::tempdir().expect("a folder");
    let outside = outside.path();
    symlink(outside, dir.path().join("link")).expect("linked");
    let way_up = format!("..{}", outside.display());
    let deep = dir
        .path()
        .join("../..")
        .join(outside.strip_prefix("/").expect("absolute"));
    let mut refusals = Vec::new();
    for path in [
        json!("none"),
        json!(dir.path().join("none")),
        json!(dir.path()),
        json!(""),
        json!("."),
        json!(outside),
        json!(outside.join("none")),
        json!("link"),
        json!(dir.path().join("link")),
        json!(".."),
        json!("new/../new"),
        json!(way_up),
        json!(deep),
        json!("a\0b"),
    ] {
        let (status, text) = front.post(PATH, &json!({"model_path": path})).await;
        assert_eq!(status, 400, "{path}: {text}");
        refusals.push(text);
        let draft = json!({"model_path": "new", "draft_model_path": path});
        let (status, text) = front.post(PATH, &draft).await;
        assert_eq!(status, 400, "{path}: {text}");
        refusals.push(text.replace("draft_model_path", "model_path"));
    }
    refusals.dedup();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(refusals[0].contains("--weight-update-dir"), "{refusals:?}");
}
