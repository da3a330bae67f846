//! `POST /v1/completions`.

mod convert;
mod echo;
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
    GenerateJson(mut request): GenerateJson<types::CompletionRequest>,
) -> ApiResult<Response> {
    check_model(&engine, request.model.as_deref())?;
    let streaming = request.streaming()?;
    let id = id.object("cmpl");
    let (draft, shape) = convert::draft(&mut request, id.clone())?;
    let submission = Submission::new(&engine, draft).await?;
    let frame = Frame::new(engine, id);
    match streaming {
        Some(streaming) => stream::answer(frame, shape, submission, streaming).await,
        None => response::answer(&frame, shape, submission).await,
    }
}
