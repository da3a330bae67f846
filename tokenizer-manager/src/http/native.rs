//! `POST /generate`: SGLang's native form.

mod convert;
mod response;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use lockstep_ports::RequestMemory;

use super::{middleware::RequestId, unsupported::GenerateJson};
use crate::{app::App, error::ApiResult};

/// Names and types of the fields of a request, and of its `sampling_params`.
pub(super) const FIELDS: &[(&str, &str)] = types::GenerateRequest::FIELDS;
pub(super) const SAMPLING_FIELDS: &[(&str, &str)] = types::SamplingFields::FIELDS;

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<RequestMemory>>,
    GenerateJson(request): GenerateJson<types::GenerateRequest>,
) -> ApiResult<Response> {
    let stream = request.stream.unwrap_or(false);
    let specs = convert::specs(&app, request, &id.0)?;
    let choices = response::Choices::submit(&app, specs, held.as_deref()).await?;
    if stream {
        response::stream(choices).await
    } else {
        response::whole(choices).await
    }
}
