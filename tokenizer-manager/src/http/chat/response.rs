//! A whole answer.

use std::sync::Arc;

use axum::response::Response;
use futures::future::try_join_all;
use serde::Serialize;

use crate::{
    engine::{Engine, now},
    error::ApiResult,
    generation::Generation,
    http::{
        json,
        openai::{
            finish_reason,
            logprobs::ChatLogprobs,
            usage::{UsageBody, UsageMeter},
        },
    },
    submission::Submission,
};

/// What every object of one answer repeats.
pub(super) struct Frame {
    pub engine: Arc<Engine>,
    pub id: String,
    pub created: u64,
    pub fingerprint: String,
    pub logprobs: bool,
}

impl Frame {
    pub(super) fn new(engine: Arc<Engine>, id: String, logprobs: bool) -> Self {
        Self {
            fingerprint: engine.fingerprint(),
            engine,
            id,
            created: now(),
            logprobs,
        }
    }
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    usage: UsageBody,
    system_fingerprint: &'a str,
}

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

/// Waits for all choices. The first that fails ends the others.
pub(super) async fn answer(frame: &Frame, mut submission: Submission) -> ApiResult<Response> {
    let mut meter = UsageMeter::new(&submission);
    let generations = std::mem::take(&mut submission.generations);
    let ended = try_join_all(generations.into_iter().map(Generation::complete)).await?;
    let mut choices = Vec::with_capacity(ended.len());
    for (index, (whole, end)) in ended.into_iter().enumerate() {
        meter.end(index, end.usage);
        choices.push(Choice {
            index,
            finish_reason: finish_reason(&end)?,
            logprobs: frame
                .logprobs
                .then(|| ChatLogprobs::new(&frame.engine.text.tokenizer, &whole.tokens)),
            message: Message {
                role: "assistant",
                content: whole.text,
                refusal: None,
            },
        });
    }
    json(&Completion {
        id: &frame.id,
        object: "chat.completion",
        created: frame.created,
        model: frame.engine.model(),
        choices,
        usage: meter.body(),
        system_fingerprint: &frame.fingerprint,
    })
}
