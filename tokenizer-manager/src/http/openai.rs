//! OpenAI's API: chat, completions, responses and models, and what generating routes share.

mod answer;
mod asked_model;
pub(super) mod chat;
pub(super) mod completions;
mod envelope;
mod logprobs;
pub(super) mod models;
pub(super) mod params;
pub(super) mod responses;
pub(super) mod usage;

pub(super) use asked_model::AskedModel;
use axum::http::StatusCode;
use lockstep_types::request::FinishReason;

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    generation::End,
};

/// Returns a 404 for a model that is not served.
pub(super) fn model_not_found(app: &App, model: &str) -> ApiError {
    let names: Vec<_> = app.names().map(|name| format!("`{name}`")).collect();
    ApiError {
        status: StatusCode::NOT_FOUND,
        code: Some("model_not_found"),
        ..ApiError::invalid(
            "model",
            format!(
                "The model `{model}` does not exist or you do not have access to it. This server \
                 serves {}.",
                names.join(", ")
            ),
        )
    }
}

/// Returns OpenAI's name for the reason why a choice ended. An abort is an error, since
/// OpenAI has no name for it.
pub(super) fn finish_reason(end: &End) -> ApiResult<&'static str> {
    match end.reason {
        FinishReason::Stop => Ok("stop"),
        FinishReason::Length => Ok("length"),
        FinishReason::Abort => Err(ApiError::aborted()),
    }
}
