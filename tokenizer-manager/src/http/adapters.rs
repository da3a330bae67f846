//! Loading and unloading of adapters while the server runs. Each route exists under vLLM's name
//! and under SGLang's; requests and answers are alike.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, Request, State},
    response::Response,
};
use lockstep_proto::pb::lockstep::{AdapterList, LoadAdapterRequest};
use lockstep_types::adapter::check_adapter_name;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{allowed_folder::AllowedFolder, body::Json, json};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// An adapter to load. Its path is relative to `--lora-dir`, or absolute.
#[derive(Deserialize)]
pub(super) struct LoadRequest {
    lora_name: String,
    lora_path: String,
    /// vLLM's: another adapter may take the name. Here it always may.
    load_inplace: Option<bool>,
}

/// An adapter to unload.
#[derive(Deserialize)]
pub(super) struct UnloadRequest {
    lora_name: String,
}

/// `POST /v1/load_lora_adapter`: loads an adapter from a folder inside `--lora-dir` on all
/// ranks, or on none. Answers when requests may name it. The same files under the same name
/// change nothing; other files take the name from then on.
pub(super) async fn load(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    match load_from_folder(&app, request).await {
        Ok((name, loaded)) => answer(&format!("Adapter `{name}` is loaded."), &loaded),
        Err(error) => refusal(error),
    }
}

async fn load_from_folder(app: &Arc<App>, request: Request) -> ApiResult<(String, AdapterList)> {
    // The permission is checked before the body is read.
    let dir = AllowedFolder::of_adapters(app)?;
    let Json(request) = Json::<LoadRequest>::from_request(request, app).await?;
    let name = request.lora_name;
    check_name(&name)?;
    if request.load_inplace == Some(false) {
        return Err(ApiError::unsupported(
            "load_inplace",
            "'load_inplace' cannot be false here: other files take the name of an adapter at \
             once; leave it out.",
        ));
    }
    let path = dir.find("lora_path", request.lora_path).await?;
    let wanted = LoadAdapterRequest {
        name: name.clone(),
        path,
    };
    Ok((name, app.scheduler.load_adapter(wanted).await?))
}

/// `POST /v1/unload_lora_adapter`: takes an adapter's name away. Requests that have it end with
/// it.
pub(super) async fn unload(
    State(app): State<Arc<App>>,
    Json(request): Json<UnloadRequest>,
) -> ApiResult<Response> {
    let name = request.lora_name;
    let unloaded = async {
        check_name(&name)?;
        ApiResult::Ok(app.scheduler.unload_adapter(name.clone()).await?)
    };
    match unloaded.await {
        Ok(left) => answer(&format!("Adapter `{name}` is unloaded."), &left),
        Err(error) => refusal(error),
    }
}

fn check_name(name: &str) -> ApiResult<()> {
    check_adapter_name(name).map_err(|rule| {
        ApiError::invalid(
            "lora_name",
            format!("Invalid 'lora_name': the name {rule}."),
        )
    })
}

/// Returns SGLang's answer.
fn answer(message: &str, loaded: &AdapterList) -> ApiResult<Response> {
    let paths: Map<String, Value> = loaded
        .adapters
        .iter()
        .map(|adapter| (adapter.name.clone(), adapter.path.clone().into()))
        .collect();
    json(&json!({"success": true, "message": message, "loaded_adapters": paths}))
}

/// Returns the usual error object, with SGLang's fields beside it.
fn refusal(error: ApiError) -> ApiResult<Response> {
    let mut body = json!(error.body());
    body["success"] = false.into();
    body["message"] = error.message.clone().into();
    let body = json(&body)?.into_body();
    Ok(error.into_http().map(|_| body))
}
