//! Other weights while the server runs.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockstep_proto::pb::lockstep::UpdateWeightsRequest;
use serde::Deserialize;
use serde_json::json;

use super::{body::Json, json, middleware::valid_id};
use crate::{
    engine::Engine,
    error::{ApiError, ApiResult},
};

/// The bytes of a path at the most, as Linux has it.
const PATH_BYTES: usize = 4096;

/// What to compute with, as SGLang names it.
#[derive(Deserialize)]
pub(super) struct UpdateRequest {
    model_path: String,
    draft_model_path: Option<String>,
    speculative_draft_model_path: Option<String>,
    abort_all_requests: Option<bool>,
    flush_cache: Option<bool>,
    weight_version: Option<String>,
    load_format: Option<String>,
    is_async: Option<bool>,
    keep_pause: Option<bool>,
}

/// `POST /update_weights_from_disk`: target and draft together, from folders on
/// the engine's nodes. Answers when new requests are let in again. SGLang's
/// answer; a refusal has the error object beside it.
pub(super) async fn update_from_disk(
    State(engine): State<Arc<Engine>>,
    Json(request): Json<UpdateRequest>,
) -> ApiResult<Response> {
    let wanted = wanted(request)?;
    let path = wanted.model_path.clone();
    match engine.scheduler.update_weights(wanted).await {
        Ok(updated) => json(&json!({
            "success": true,
            "message": format!("The weights are those of {path}."),
            "num_paused_requests": updated.paused_requests,
        })),
        Err(error) => refusal(error.into()),
    }
}

/// As any refusal, with SGLang's fields beside the error object.
fn refusal(error: ApiError) -> ApiResult<Response> {
    let mut body = json!(error.body());
    body["success"] = false.into();
    body["message"] = error.message.clone().into();
    body["num_paused_requests"] = 0.into();
    let body = json(&body)?.into_body();
    Ok(error.into_http().map(|_| body))
}

fn wanted(request: UpdateRequest) -> ApiResult<UpdateWeightsRequest> {
    unsupported(&request)?;
    let draft = match (
        request.draft_model_path,
        request.speculative_draft_model_path,
    ) {
        (Some(one), Some(other)) if one != other => {
            return Err(ApiError::invalid(
                "speculative_draft_model_path",
                "'draft_model_path' and 'speculative_draft_model_path' are two names of one thing; \
                 give one of them.",
            ));
        }
        (Some(path), _) => Some(("draft_model_path", path)),
        (None, path) => path.map(|path| ("speculative_draft_model_path", path)),
    };
    is_path("model_path", &request.model_path)?;
    if let Some((field, path)) = &draft {
        is_path(field, path)?;
    }
    let version = request.weight_version;
    if let Some(version) = version.as_deref().filter(|version| !valid_id(version)) {
        return Err(ApiError::invalid(
            "weight_version",
            format!(
                "Invalid 'weight_version' {version:?}: expected 1 to 128 letters, digits and \
                 characters of \"-_.:/\"."
            ),
        ));
    }
    Ok(UpdateWeightsRequest {
        model_path: request.model_path,
        draft_path: draft.map(|(_, path)| path),
        abort_all: request.abort_all_requests.unwrap_or(false),
        version,
    })
}

/// What SGLang can be asked for and this version does not do.
fn unsupported(request: &UpdateRequest) -> ApiResult<()> {
    let format = request.load_format.as_deref();
    for (field, asked, remedy) in [
        (
            "flush_cache",
            request.flush_cache == Some(false),
            "the prefix cache is of the old weights and always goes with them",
        ),
        (
            "load_format",
            !matches!(format, None | Some("auto" | "safetensors")),
            "weights are read from safetensors files",
        ),
        (
            "is_async",
            request.is_async == Some(true),
            "the answer comes when the weights are there",
        ),
        (
            "keep_pause",
            request.keep_pause == Some(true),
            "requests go on when the weights are there",
        ),
    ] {
        if asked {
            return Err(ApiError::unsupported(
                field,
                format!("'{field}' cannot be that here: {remedy}; leave it out."),
            ));
        }
    }
    Ok(())
}

fn is_path(field: &str, path: &str) -> ApiResult<()> {
    if path.starts_with('/') && path.len() < PATH_BYTES && !path.contains('\0') {
        return Ok(());
    }
    Err(ApiError::invalid(
        field,
        format!("Invalid '{field}': expected the absolute path of a folder on the engine's nodes."),
    ))
}
