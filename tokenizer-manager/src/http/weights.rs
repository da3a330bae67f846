//! Update of the weights while the server runs.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, Request, State},
    response::Response,
};
use lockstep_proto::pb::lockstep::{UpdateWeightsRequest, UpdateWeightsResponse};
use serde::Deserialize;
use serde_json::json;

use super::{allowed_folder::AllowedFolder, body::Json, json};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    request_id::check_id,
};

/// The new weights, under SGLang's names. Paths are relative to `--weight-update-dir`,
/// or absolute.
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

/// `POST /update_weights_from_disk`: updates target and draft together, from folders
/// inside `--weight-update-dir`. Several nodes must have the folders in the same
/// places. Answers when new requests are admitted again. The answer is SGLang's; a
/// refusal also has the error object.
pub(super) async fn update_from_disk(
    State(app): State<Arc<App>>,
    request: Request,
) -> ApiResult<Response> {
    match update(&app, request).await {
        Ok((path, updated)) => json(&json!({
            "success": true,
            "message": format!("The weights are those of {path}."),
            "num_paused_requests": updated.paused_requests,
        })),
        Err(error) => refusal(error),
    }
}

/// Updates the weights and returns their folder.
async fn update(app: &Arc<App>, request: Request) -> ApiResult<(String, UpdateWeightsResponse)> {
    // The permission is checked before the body is read.
    let dir = AllowedFolder::of_weights(app)?;
    let Json(request) = Json::from_request(request, app).await?;
    let mut wanted = wanted(request)?;
    wanted.model_path = dir.find("model_path", wanted.model_path).await?;
    if let Some(path) = wanted.draft_path {
        wanted.draft_path = Some(dir.find("draft_model_path", path).await?);
    }
    let path = wanted.model_path.clone();
    let updated = app.scheduler.update_weights(wanted).await?;
    Ok((path, updated))
}

/// Returns the usual error object, with SGLang's fields beside it.
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
        (one, other) => one.or(other),
    };
    let version = request.weight_version;
    if let Some(version) = &version {
        check_id("weight_version", version)?;
    }
    Ok(UpdateWeightsRequest {
        model_path: request.model_path,
        draft_path: draft,
        abort_all: request.abort_all_requests.unwrap_or(false),
        version,
    })
}

/// Refuses options of SGLang that this version does not support.
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
