//! `POST /v1/chat/completions`.

mod convert;
mod form;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use lockstep_ports::Held;

use super::{
    middleware::RequestId,
    openai::{answer::answer, check_model, envelope::Envelope},
    unsupported::GenerateJson,
};
use crate::{app::App, error::ApiResult, request_id::CHAT, submission::Submission};

/// Names and types of the request's fields.
pub(super) const FIELDS: &[(&str, &str)] = types::ChatRequest::FIELDS;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<Held>>,
    GenerateJson(mut request): GenerateJson<types::ChatRequest>,
) -> ApiResult<Response> {
    check_model(&app, request.model.as_deref())?;
    let streaming = request.streaming()?;
    let id = id.object(CHAT);
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let spec = convert::spec(&app, &mut request, id.clone()).await?;
    let held = held.as_deref();
    let submission = Submission::new(&app, spec, held).await?;
    let form = form::ChatForm::new(wants_logprobs, submission.generations.len());
    answer(Envelope::new(app, id), submission, streaming, form).await
}
