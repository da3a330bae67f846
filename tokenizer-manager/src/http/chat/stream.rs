//! A streamed answer: one chunk with the role, one per delta, and one with the finish
//! reason. If requested, a last chunk has the token counts.

use axum::response::Response;
use serde::Serialize;

use crate::{
    error::ApiResult,
    generation::Delta,
    http::{
        openai::{
            envelope::{Choices, ChunkFramer, Chunks, Envelope},
            finish_reason,
            logprobs::ChatLogprobs,
            params::Streaming,
            stream,
            usage::UsageMeter,
        },
        sse::{self, Frames},
    },
    submission::Submission,
};

#[derive(Default, Serialize)]
struct Choice<'a> {
    index: usize,
    delta: Part<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Part<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

struct ChatChoices {
    logprobs: bool,
    /// True for each choice whose role was sent.
    greeted: Vec<bool>,
}

/// Streams all choices.
pub(super) async fn answer(
    envelope: Envelope,
    logprobs: bool,
    submission: Submission,
    streaming: Streaming,
) -> ApiResult<Response> {
    let framer = ChunkFramer {
        choices: ChatChoices {
            logprobs,
            greeted: vec![false; submission.generations.len()],
        },
        chunks: Chunks {
            envelope,
            object: "chat.completion.chunk",
            streaming,
            meter: UsageMeter::new(&submission),
        },
    };
    let deltas = stream::start(submission).await?;
    Ok(sse::response(deltas, framer))
}

impl Choices for ChatChoices {
    fn delta(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()> {
        chunks.meter.progress(index, delta.completion_tokens);
        if !std::mem::replace(&mut self.greeted[index], true) {
            let greeting = Choice {
                index,
                delta: Part {
                    role: Some("assistant"),
                    content: Some(""),
                },
                ..Choice::default()
            };
            chunks.choice(greeting, frames);
        }
        // A step's chunk may be empty, but an empty one is left out before the chunk
        // with the finish reason.
        let shows = !delta.text.is_empty() || (self.logprobs && !delta.tokens.is_empty());
        if shows || delta.end.is_none() {
            let tokenizer = &chunks.envelope.app.text.tokenizer;
            let choice = Choice {
                index,
                delta: Part {
                    role: None,
                    content: Some(&delta.text),
                },
                logprobs: self
                    .logprobs
                    .then(|| ChatLogprobs::new(tokenizer, &delta.tokens)),
                finish_reason: None,
            };
            chunks.choice(choice, frames);
        }
        if let Some(end) = &delta.end {
            let finish_reason = Some(finish_reason(end)?);
            chunks.meter.end(index, end);
            let last = Choice {
                index,
                finish_reason,
                ..Choice::default()
            };
            chunks.choice(last, frames);
        }
        Ok(())
    }
}
