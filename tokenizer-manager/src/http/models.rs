//! `/v1/models`: the one model that is served.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use serde::Serialize;

use super::{json, openai::model_not_found};
use crate::{
    engine::Engine,
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

fn model(engine: &Engine) -> Model<'_> {
    Model {
        id: engine.model(),
        object: "model",
        created: engine.started,
        owned_by: "lockstep",
        root: engine.model(),
        parent: None,
        max_model_len: engine.config.server.context_length,
    }
}

pub(super) async fn list(State(engine): State<Arc<Engine>>) -> ApiResult<Response> {
    json(&List {
        object: "list",
        data: [model(&engine)],
    })
}

pub(super) async fn retrieve(
    State(engine): State<Arc<Engine>>,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> ApiResult<Response> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    if id != engine.model() {
        return Err(model_not_found(&engine, &id));
    }
    json(&model(&engine))
}
