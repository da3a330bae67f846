//! `POST /v1/completions`.

mod convert;
mod echo;
mod form;
mod shape;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use lockstep_ports::RequestMemory;

use super::{AskedModel, answer::answer, envelope::Envelope};
use crate::{
    app::App,
    error::ApiResult,
    http::{middleware::RequestId, unsupported::GenerateJson},
    request_id::COMPLETION,
    submission::Submission,
};

/// Names and types of the request's fields.
pub(in crate::http) const FIELDS: &[(&str, &str)] = types::CompletionRequest::FIELDS;

pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<RequestMemory>>,
    GenerateJson(mut request): GenerateJson<types::CompletionRequest>,
) -> ApiResult<Response> {
    let model = AskedModel::of(&app, request.model.as_deref())?;
    let streaming = request.streaming()?;
    let id = id.object(COMPLETION);
    let (mut spec, shape) = convert::spec(&mut request, id.clone())?;
    spec.adapter = model.adapter();
    let held = held.as_deref();
    let submission = Submission::new(&app, spec, held).await?;
    let form = form::CompletionForm::new(&app, shape, &submission).await?;
    answer(Envelope::new(app, id, model), submission, streaming, form).await
}
