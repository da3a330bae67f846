//! `POST /generate`: SGLang's native form.

mod convert;
mod response;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};

use super::{middleware::RequestId, unsupported::GenerateJson};
use crate::{engine::Engine, error::ApiResult};

pub(super) async fn generate(
    State(engine): State<Arc<Engine>>,
    Extension(id): Extension<RequestId>,
    GenerateJson(request): GenerateJson<types::GenerateRequest>,
) -> ApiResult<Response> {
    let stream = request.stream.unwrap_or(false);
    let batch = convert::drafts(&engine, request, &id.0)?;
    let jobs = response::Jobs::submit(&engine, batch).await?;
    if stream {
        response::stream(jobs).await
    } else {
        response::whole(jobs).await
    }
}
