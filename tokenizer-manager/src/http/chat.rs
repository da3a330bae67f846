//! `POST /v1/chat/completions`.

pub(super) mod convert;
mod response;
mod stream;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};

use super::{
    middleware::RequestId,
    openai::{check_model, frame::Frame},
    unsupported::GenerateJson,
};
use crate::{engine::Engine, error::ApiResult, submission::Submission};

pub(super) async fn create(
    State(engine): State<Arc<Engine>>,
    Extension(id): Extension<RequestId>,
    GenerateJson(mut request): GenerateJson<types::ChatRequest>,
) -> ApiResult<Response> {
    check_model(&engine, request.model.as_deref())?;
    let streaming = request.streaming()?;
    let id = id.object("chatcmpl");
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let draft = convert::draft(&engine, &mut request, id.clone()).await?;
    let submission = Submission::new(&engine, draft).await?;
    let frame = Frame::new(engine, id);
    match streaming {
        Some(streaming) => stream::answer(frame, wants_logprobs, submission, streaming).await,
        None => response::answer(&frame, wants_logprobs, submission).await,
    }
}
