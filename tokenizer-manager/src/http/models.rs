//! `/v1/models`: the one model that is served.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use serde::Serialize;

use super::{json, openai::model_not_found};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<()>,
    max_model_len: usize,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: [Model<'a>; 1],
}

fn model(app: &App) -> Model<'_> {
    Model {
        id: app.model(),
        object: "model",
        created: app.started,
        owned_by: "lockstep",
        root: app.model(),
        parent: None,
        max_model_len: app.config.server.context_length,
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> ApiResult<Response> {
    json(&List {
        object: "list",
        data: [model(&app)],
    })
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> ApiResult<Response> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    if id != app.model() {
        return Err(model_not_found(&app, &id));
    }
    json(&model(&app))
}
