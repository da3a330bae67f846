//! `/v1/models`: the one served model, listed once under each of its names.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use serde::Serialize;

use super::model_not_found;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::json,
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
    data: Vec<Model<'a>>,
}

fn model<'a>(app: &'a App, name: &'a str) -> Model<'a> {
    Model {
        id: name,
        object: "model",
        created: app.figures.started,
        owned_by: "lockstep",
        root: app.model(),
        parent: None,
        max_model_len: app.config.server.context_length,
    }
}

pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> ApiResult<Response> {
    json(&List {
        object: "list",
        data: app.names().map(|name| model(&app, name)).collect(),
    })
}

pub(in crate::http) async fn retrieve(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> ApiResult<Response> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    match app.names().find(|name| *name == id) {
        Some(name) => json(&model(&app, name)),
        None => Err(model_not_found(&app, &id)),
    }
}
