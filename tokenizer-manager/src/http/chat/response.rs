//! The answer of a chat request without streaming.

use axum::response::Response;
use futures::future::try_join_all;
use serde::Serialize;

use crate::{
    error::ApiResult,
    generation::Generation,
    http::openai::{envelope::Envelope, finish_reason, logprobs::ChatLogprobs, usage::UsageMeter},
    submission::Submission,
};

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

/// Waits for all choices. The first choice that fails ends the others.
pub(super) async fn answer(
    envelope: &Envelope,
    logprobs: bool,
    mut submission: Submission,
) -> ApiResult<Response> {
    let mut meter = UsageMeter::new(&submission);
    let generations = std::mem::take(&mut submission.generations);
    let ended = try_join_all(generations.into_iter().map(Generation::complete)).await?;
    let mut choices = Vec::with_capacity(ended.len());
    for (index, (whole, end)) in ended.into_iter().enumerate() {
        meter.end(index, &end);
        choices.push(Choice {
            index,
            finish_reason: finish_reason(&end)?,
            logprobs: logprobs
                .then(|| ChatLogprobs::new(&envelope.app.text.tokenizer, &whole.tokens)),
            message: Message {
                role: "assistant",
                content: whole.text,
                refusal: None,
            },
        });
    }
    envelope.whole("chat.completion", &choices, meter.body())
}
