//! Anthropic's Messages API: messages, and the count of their tokens.

mod answer;
mod convert;
mod errors;
mod stream;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
pub(super) use errors::reshape;
use lockstep_ports::RequestMemory;
use serde::Serialize;

use super::{
    json, middleware::RequestId, openai::AskedModel, tokenize::count_tokens,
    unsupported::GenerateJson,
};
use crate::{app::App, error::ApiResult, request_id::MESSAGE, submission::Submission};

/// Names and types of the request's fields.
pub(in crate::http) const FIELDS: &[(&str, &str)] = types::MessagesRequest::FIELDS;

/// `POST /v1/messages`.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<RequestMemory>>,
    GenerateJson(mut request): GenerateJson<types::MessagesRequest>,
) -> ApiResult<Response> {
    let model = AskedModel::of(&app, request.model.as_deref())?;
    let streamed = request.stream.unwrap_or(false);
    let message_id = id.object(MESSAGE);
    let (mut spec, shape) = convert::spec(&app, &mut request, message_id.clone()).await?;
    spec.adapter = model.adapter();
    let submission = Submission::new(&app, spec, held.as_deref()).await?;
    let answer = answer::Answer {
        app,
        id: message_id,
        model,
        shape,
    };
    match streamed {
        true => stream::stream(answer, id, submission).await,
        false => answer.whole(submission).await,
    }
}

#[derive(Serialize)]
struct Counted {
    input_tokens: usize,
}

/// `POST /v1/messages/count_tokens`.
pub(super) async fn count(
    State(app): State<Arc<App>>,
    GenerateJson(mut request): GenerateJson<types::MessagesRequest>,
) -> ApiResult<Response> {
    AskedModel::check(&app, request.model.as_deref()).await?;
    let chat = convert::chat(&app, &mut request)?;
    let input_tokens = count_tokens(&app, chat.conversation).await?;
    json(&Counted { input_tokens })
}
