//! `/v1/models`: the one served model, listed once under each of its names, and its adapters.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use lockstep_proto::pb::lockstep::LoadedAdapter;
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
    /// The model that it adapts; `None` for the model.
    parent: Option<&'a str>,
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

fn adapter<'a>(app: &'a App, loaded: &'a LoadedAdapter) -> Model<'a> {
    Model {
        created: loaded.loaded,
        parent: Some(app.model()),
        ..model(app, &loaded.name)
    }
}

/// Returns the adapters that requests may name now.
async fn loaded(app: &App) -> ApiResult<Vec<LoadedAdapter>> {
    match app.config.adapters.places {
        0 => Ok(Vec::new()),
        _ => Ok(app.scheduler.adapters().await?.adapters),
    }
}

pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> ApiResult<Response> {
    // The model is listed before there is a scheduler, when no adapter can be used.
    let adapters = loaded(&app).await.unwrap_or_default();
    let adapters = adapters.iter().map(|loaded| adapter(&app, loaded));
    json(&List {
        object: "list",
        data: app
            .names()
            .map(|name| model(&app, name))
            .chain(adapters)
            .collect(),
    })
}

pub(in crate::http) async fn retrieve(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> ApiResult<Response> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    if let Some(name) = app.names().find(|name| *name == id) {
        return json(&model(&app, name));
    }
    let adapters = loaded(&app).await?;
    match adapters.iter().find(|loaded| loaded.name == id) {
        Some(loaded) => json(&adapter(&app, loaded)),
        None => Err(model_not_found(&app, &id)),
    }
}
