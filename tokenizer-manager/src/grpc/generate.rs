//! `Generate`: one message per step, or one per choice at its end.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use lockstep_ports::RequestMemory;
use lockstep_proto::pb::lockstep::{
    FinishReason, GenerateRequest, GenerateResponse, generate_response,
};

use super::{Answers, convert};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    generation::{Delta, End, Event, Matched, merge},
    submission::Submission,
};

/// Submits a request. An error before the first token becomes the call's own status.
pub(super) async fn generate(
    app: &Arc<App>,
    request: GenerateRequest,
    held: Option<&RequestMemory>,
) -> ApiResult<Answers> {
    let streaming = request.stream.unwrap_or(true);
    let spec = convert::spec(app, request).await?;
    let id: Arc<str> = spec.trace_id.as_str().into();
    let submission = Submission::new(app, spec, held).await?;
    let mut answers = if streaming {
        let deltas = merge(submission.generations);
        let answers =
            deltas.map(move |(index, delta)| delta.map(|delta| answer(&id, index, delta)));
        answers.boxed()
    } else {
        let choices = submission.generations.into_iter().enumerate();
        let answers = choices.map(|(index, generation)| {
            let id = id.clone();
            let whole = generation.complete();
            let answer = whole.map(move |whole| whole.map(|whole| answer(&id, index, whole)));
            stream::once(answer).boxed()
        });
        stream::select_all(answers).boxed()
    };
    let first = match answers.next().await {
        Some(first) => Some(Ok(first?)),
        None => None,
    };
    // Nothing follows an error: dropping the other streams aborts their choices.
    let answers = stream::iter(first)
        .chain(answers)
        .scan(false, |over, answer| {
            let item = (!*over).then(|| answer.map_err(ApiError::into_status));
            *over |= matches!(item, Some(Err(_)));
            std::future::ready(item)
        });
    Ok(answers.boxed())
}

fn answer(id: &str, index: usize, delta: Delta) -> GenerateResponse {
    let mut answer = GenerateResponse {
        request_id: id.to_owned(),
        index: u32::try_from(index).unwrap_or(u32::MAX),
        prompt_logprobs: delta.prompt_logprobs.into_iter().map(Into::into).collect(),
        ..GenerateResponse::default()
    };
    for event in delta.events {
        match event {
            Event::Text(text) => {
                answer.text.push_str(&text.text);
                for token in text.tokens {
                    answer.token_ids.push(token.id);
                    answer.logprobs.extend(token.logprob.map(Into::into));
                }
            }
            // This surface asks for no parts, so all output is text.
            Event::Reasoning(_) | Event::ToolCall(_) => {}
            Event::End(end) => finish(&mut answer, end),
        }
    }
    answer
}

fn finish(answer: &mut GenerateResponse, end: End) {
    answer.finish_reason = Some(FinishReason::from(end.reason).into());
    answer.matched = end.matched.map(|matched| match matched {
        Matched::Token(id) => generate_response::Matched::MatchedToken(id),
        Matched::Text(text) => generate_response::Matched::MatchedStop(text),
    });
    answer.usage = Some(end.usage.into());
    answer.speculation = end.speculation.map(Into::into);
}
