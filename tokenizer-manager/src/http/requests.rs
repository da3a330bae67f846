//! List of running and waiting requests, without their texts.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockstep_proto::pb::lockstep::LiveRequest;
use serde_json::{Value, json};

use super::json;
use crate::{app::App, error::ApiResult};

/// Maximum requests in one answer; more than a batch has.
const MOST: u32 = 1000;

/// `GET /requests`: all requests of the server that have not ended, whichever
/// tokenizer-manager or port they came through. Running requests come first, then
/// waiting ones, each oldest first. A request of several choices has an entry for each.
pub(super) async fn list(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let live = app.scheduler.requests(MOST).await?;
    let requests: Vec<_> = live.requests.iter().map(entry).collect();
    json(&json!({"total": live.total, "requests": requests}))
}

fn entry(request: &LiveRequest) -> Value {
    let state = match (request.running, request.retracted) {
        (true, _) => "running",
        (false, true) => "retracted",
        (false, false) => "waiting",
    };
    json!({
        "rid": request.trace_id,
        "state": state,
        "age_seconds": request.age_ms as f64 / 1e3,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "completion_tokens": request.output_tokens,
        "max_tokens": request.max_new_tokens,
        "dp_rank": request.dp_rank,
    })
}
