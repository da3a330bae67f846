//! `POST /v1/responses`, without a store: each request has its whole conversation.

mod convert;
mod events;
mod input;
mod item;
mod items;
mod object;
mod stream;
mod tools;
mod types;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use events::Nowhere;
use item::Status;
use items::Items;
use lockstep_ports::RequestMemory;
use object::{Answer, Outcome};

use super::{AskedModel, usage::UsageMeter};
use crate::{
    app::App,
    error::ApiResult,
    generation::Event,
    http::{json, middleware::RequestId, unsupported::GenerateJson},
    request_id::RESPONSE,
    submission::Submission,
};

/// Names and types of the request's fields.
pub(in crate::http) const FIELDS: &[(&str, &str)] = types::ResponsesRequest::FIELDS;

pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    held: Option<Extension<RequestMemory>>,
    GenerateJson(mut request): GenerateJson<types::ResponsesRequest>,
) -> ApiResult<Response> {
    let model = AskedModel::of(&app, request.model.as_deref())?;
    let streamed = request.stream.unwrap_or(false);
    let response_id = id.object(RESPONSE);
    let (mut spec, settings) = convert::spec(&app, &mut request, response_id.clone()).await?;
    spec.adapter = model.adapter();
    let held = held.as_deref();
    let memory = held.map(|held| held.reserve(&[settings.bytes()]));
    let memory = memory.transpose()?.unwrap_or_default();
    let submission = Submission::new(&app, spec, held).await?;
    let items = Items::new(&app, &id.0);
    let answer = Answer::new(app, (response_id, model), settings, memory);
    match streamed {
        true => stream::stream(answer, items, submission).await,
        false => whole(&answer, items, submission).await,
    }
}

/// Waits for the end of the only choice, and answers with all of it.
async fn whole(answer: &Answer, mut items: Items, submission: Submission) -> ApiResult<Response> {
    let mut meter = UsageMeter::new(&submission);
    let mut outcome = Outcome::InProgress;
    for generation in submission.generations {
        for event in generation.complete().await?.events {
            if let Event::End(end) = &event {
                meter.end(0, end);
                outcome = Outcome::of(end)?;
            }
            items.add(event, &mut Nowhere);
        }
    }
    items.finish(Status::of(&outcome), &mut Nowhere);
    json(&answer.response(outcome, items.all(), Some(meter.totals())))
}
