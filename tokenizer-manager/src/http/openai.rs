//! What OpenAI's two generating routes have in common.

pub(super) mod envelope;
pub(super) mod logprobs;
pub(super) mod params;
pub(super) mod stream;
pub(super) mod usage;

use axum::http::StatusCode;
use lockstep_types::request::FinishReason;

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    generation::End,
};

/// The `model` of a request must be the one that is served, by any of its
/// names; without one, or as `default`, it can mean no other.
pub(super) fn check_model(app: &App, model: Option<&str>) -> ApiResult<()> {
    match model {
        None | Some("" | "default") => Ok(()),
        Some(model) if app.names().any(|name| name == model) => Ok(()),
        Some(model) => Err(model_not_found(app, model)),
    }
}

/// 404 for a model that is not served.
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

/// OpenAI's name for why a choice ended. OpenAI has no word for a choice that
/// somebody else aborted: that is an error.
pub(super) fn finish_reason(end: &End) -> ApiResult<&'static str> {
    match end.reason {
        FinishReason::Stop => Ok("stop"),
        FinishReason::Length => Ok("length"),
        FinishReason::Abort => Err(ApiError::aborted()),
    }
}
