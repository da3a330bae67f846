//! `POST /v1/chat/completions`.

mod calls;
mod convert;
mod form;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use lockstep_ports::RequestMemory;

use super::{AskedModel, answer::answer, envelope::Envelope};
use crate::{
    app::App,
    error::ApiResult,
    http::{middleware::RequestId, unsupported::GenerateJson},
    request_id::CHAT,
    submission::Submission,
};

/// Names and types of the request's fields.
pub(in crate::http) const FIELDS: &[(&str, &str)] = types::ChatRequest::FIELDS;

pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<RequestMemory>>,
    GenerateJson(mut request): GenerateJson<types::ChatRequest>,
) -> ApiResult<Response> {
    let model = AskedModel::of(&app, request.model.as_deref())?;
    let streaming = request.streaming()?;
    let id = id.object(CHAT);
    let (mut spec, reasoning) = convert::spec(&app, &mut request, id.clone()).await?;
    spec.adapter = model.adapter();
    let shows = form::Shows {
        logprobs: request.logprobs.unwrap_or(false),
        reasoning,
        empty_text: spec.answer.is_plain(),
    };
    let held = held.as_deref();
    let submission = Submission::new(&app, spec, held).await?;
    let form = form::ChatForm::new(shows, submission.generations.len());
    answer(Envelope::new(app, id, model), submission, streaming, form).await
}
