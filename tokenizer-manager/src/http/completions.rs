//! `POST /v1/completions`.

mod convert;
mod echo;
mod response;
mod stream;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use lockstep_ports::Held;

use super::{
    middleware::{COMPLETION, RequestId},
    openai::{check_model, envelope::Envelope},
    unsupported::GenerateJson,
};
use crate::{app::App, error::ApiResult, submission::Submission};

/// Names and types of the request's fields.
pub(super) const FIELDS: &[(&str, &str)] = types::CompletionRequest::FIELDS;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<Held>>,
    GenerateJson(mut request): GenerateJson<types::CompletionRequest>,
) -> ApiResult<Response> {
    check_model(&app, request.model.as_deref())?;
    let streaming = request.streaming()?;
    let id = id.object(COMPLETION);
    let (spec, shape) = convert::spec(&mut request, id.clone())?;
    let held = held.as_deref();
    let submission = Submission::new(&app, spec, held).await?;
    let envelope = Envelope::new(app, id);
    match streaming {
        Some(streaming) => stream::answer(envelope, shape, submission, streaming).await,
        None => response::answer(&envelope, shape, submission).await,
    }
}
