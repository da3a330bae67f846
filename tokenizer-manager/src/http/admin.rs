//! Routes for operators: health, cache, aborts, metrics.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::{body::Json, browsers::is_browser, json, not_found::wrong_method};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    metrics::{merge, render_server, render_sglang, with_model},
    request_id::known_as,
};

/// `GET /health`, `GET /ping`: 200 if a forward step ran on every rank recently, or if
/// one runs now.
pub(super) async fn health(State(app): State<Arc<App>>) -> ApiResult<Response> {
    app.healthy(false).await?;
    json(&json!({"status": "ok"}))
}

/// `GET /health_generate`: 200 after a forward step that this request started.
pub(super) async fn health_generate(State(app): State<Arc<App>>) -> ApiResult<Response> {
    app.healthy(true).await?;
    json(&json!({"status": "ok"}))
}

/// `GET /flush_cache`, as in SGLang. Browsers are refused, since they send a GET for
/// every picture of a page.
pub(super) async fn get_flush_cache(
    state: State<Arc<App>>,
    request: Request,
) -> ApiResult<Response> {
    match is_browser(request.headers()) {
        true => Err(wrong_method(request).await),
        false => flush_cache(state).await,
    }
}

/// `POST /flush_cache`: empties the prefix cache. Refused while requests run.
pub(super) async fn flush_cache(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let flushed = app.scheduler.flush().await?;
    if !flushed.flushed {
        return Err(ApiError::bad_request(format!(
            "The cache was not flushed: {}",
            flushed.reason
        )));
    }
    json(&json!({"flushed": true, "tokens": flushed.tokens}))
}

/// Body of `/abort_request`.
#[derive(Deserialize)]
pub(super) struct AbortRequest {
    rid: Option<String>,
    abort_all: Option<bool>,
}

/// `POST /abort_request`: aborts by the id in the answer (`chatcmpl-…`, `rid`), by the
/// client's own `X-Request-Id`, or aborts all requests. Reaches the requests of every
/// tokenizer-manager.
pub(super) async fn abort_request(
    State(app): State<Arc<App>>,
    Json(request): Json<AbortRequest>,
) -> ApiResult<Response> {
    let ids = match (request.rid, request.abort_all.unwrap_or(false)) {
        (_, true) => None,
        (Some(rid), false) => Some(known_as("rid", &rid)?),
        (None, false) => {
            return Err(ApiError::invalid(
                "rid",
                "Either 'rid' or 'abort_all' must be given.",
            ));
        }
    };
    let aborted = app.scheduler.abort(ids).await?;
    json(&json!({"aborted": aborted}))
}

/// `GET /metrics`: the series of all tokenizer-managers that answer in time, and the
/// scheduler's if the scheduler can be reached.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let (fronts, load) = tokio::join!(app.all_figures(true), app.scheduler.load());
    let silent = app
        .config
        .parallel
        .tokenizer_managers
        .saturating_sub(fronts.len());
    let lost = app.metrics.lost_log_lines();
    let load = load.ok();
    let server = render_server(load.as_ref(), silent, lost);
    let fronts = fronts.iter().map(|front| front.metrics.as_str());
    let mut text = merge(fronts.chain([server.as_str()]));
    if app.config.server.sglang_metrics {
        let sglang = render_sglang(&text, load.as_ref());
        text.push_str(&sglang);
    }
    let text = with_model(&text, app.model());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response()
}
