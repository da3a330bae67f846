//! A streamed answer: a chunk with the role, one per delta, one with the reason
//! of the end; then, if asked for, one with the counts.

use axum::response::Response;
use serde::Serialize;

use super::response::Frame;
use crate::{
    error::ApiResult,
    generation::{Delta, End},
    http::{
        openai::{
            finish_reason,
            logprobs::ChatLogprobs,
            params::Streaming,
            stream,
            usage::{UsageBody, UsageMeter},
        },
        sse::{self, Framer, Frames},
    },
    submission::Submission,
};

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: ChunkDelta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct ChunkDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

struct ChatFramer {
    frame: Frame,
    streaming: Streaming,
    meter: UsageMeter,
    /// Choices whose role was said.
    greeted: Vec<bool>,
}

/// Streams all choices.
pub(super) async fn answer(
    frame: Frame,
    submission: Submission,
    streaming: Streaming,
) -> ApiResult<Response> {
    let meter = UsageMeter::new(&submission);
    let greeted = vec![false; submission.generations.len()];
    let deltas = stream::start(submission).await?;
    Ok(sse::response(
        deltas,
        ChatFramer {
            frame,
            streaming,
            meter,
            greeted,
        },
    ))
}

impl Framer for ChatFramer {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (index, delta): Self::Item, frames: &mut Frames) -> bool {
        match delta.and_then(|delta| self.delta(index, &delta, frames)) {
            Ok(()) => true,
            Err(error) => {
                frames.error(&error);
                false
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.streaming.usage {
            self.chunk(&[], Some(Some(self.meter.body())), frames);
        }
        frames.done();
    }
}

impl ChatFramer {
    fn delta(&mut self, index: usize, delta: &Delta, frames: &mut Frames) -> ApiResult<()> {
        self.meter.progress(index, delta.completion_tokens);
        if !self.greeted[index] {
            self.greeted[index] = true;
            let greeting = ChunkDelta {
                role: Some("assistant"),
                content: Some(""),
            };
            self.choice(index, greeting, None, None, frames);
        }
        let logprobs = |framer: &Self| {
            framer
                .frame
                .logprobs
                .then(|| ChatLogprobs::new(&framer.frame.engine.text.tokenizer, &delta.tokens))
        };
        let show = !delta.text.is_empty() || (self.frame.logprobs && !delta.tokens.is_empty());
        if show {
            let content = ChunkDelta {
                role: None,
                content: Some(&delta.text),
            };
            self.choice(index, content, logprobs(self), None, frames);
        }
        match &delta.end {
            Some(end) => self.ending(index, end, frames),
            None => Ok(()),
        }
    }

    fn ending(&mut self, index: usize, end: &End, frames: &mut Frames) -> ApiResult<()> {
        let reason = finish_reason(end)?;
        self.meter.end(index, end.usage);
        self.choice(index, ChunkDelta::default(), None, Some(reason), frames);
        Ok(())
    }

    fn choice(
        &self,
        index: usize,
        delta: ChunkDelta<'_>,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
        frames: &mut Frames,
    ) {
        let usage = match self.streaming {
            Streaming {
                continuous: true, ..
            } => Some(Some(self.meter.body())),
            Streaming { usage: true, .. } => Some(None),
            Streaming { usage: false, .. } => None,
        };
        let choice = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        };
        self.chunk(&[choice], usage, frames);
    }

    fn chunk(
        &self,
        choices: &[ChunkChoice<'_>],
        usage: Option<Option<UsageBody>>,
        frames: &mut Frames,
    ) {
        let frame = &self.frame;
        frames.event(&Chunk {
            id: &frame.id,
            object: "chat.completion.chunk",
            created: frame.created,
            model: frame.engine.model(),
            system_fingerprint: &frame.fingerprint,
            choices,
            usage,
        });
    }
}
