//! A streamed answer: a chunk per delta, the last one with the reason of the
//! end; then, if asked for, one with the counts.

use axum::response::Response;
use serde::Serialize;

use super::{echo::Echo, response::Frame};
use crate::{
    error::ApiResult,
    generation::Delta,
    http::{
        openai::{
            finish_reason,
            logprobs::CompletionLogprobs,
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
    text: &'a str,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

struct CompletionFramer {
    frame: Frame,
    streaming: Streaming,
    meter: UsageMeter,
    n: usize,
    echoes: Vec<Echo>,
    /// Choices whose prompt was shown.
    echoed: Vec<bool>,
}

/// Streams all choices.
pub(super) async fn answer(
    frame: Frame,
    submission: Submission,
    streaming: Streaming,
) -> ApiResult<Response> {
    let framer = CompletionFramer {
        meter: UsageMeter::new(&submission),
        n: submission.n,
        echoes: frame.echoes(&submission).await?,
        echoed: vec![false; submission.generations.len()],
        frame,
        streaming,
    };
    let deltas = stream::start(submission).await?;
    Ok(sse::response(deltas, framer))
}

impl Framer for CompletionFramer {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (index, delta): Self::Item, frames: &mut Frames) -> bool {
        match delta.and_then(|delta| self.delta(index, delta, frames)) {
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

impl CompletionFramer {
    fn delta(&mut self, index: usize, mut delta: Delta, frames: &mut Frames) -> ApiResult<()> {
        let finish_reason = delta.end.as_ref().map(finish_reason).transpose()?;
        match &delta.end {
            Some(end) => self.meter.end(index, end.usage),
            None => self.meter.progress(index, delta.completion_tokens),
        }
        let echo = self.echoes.get(index / self.n);
        let logprobs = self.frame.logprobs(echo, &delta);
        if let Some(echo) = echo
            && !std::mem::replace(&mut self.echoed[index], true)
        {
            delta.text.insert_str(0, &echo.text);
        }
        let usage = match self.streaming {
            Streaming {
                continuous: true, ..
            } => Some(Some(self.meter.body())),
            Streaming { usage: true, .. } => Some(None),
            Streaming { usage: false, .. } => None,
        };
        let choice = ChunkChoice {
            index,
            text: &delta.text,
            logprobs,
            finish_reason,
        };
        self.chunk(&[choice], usage, frames);
        Ok(())
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
            object: "text_completion",
            created: frame.created,
            model: frame.engine.model(),
            system_fingerprint: &frame.fingerprint,
            choices,
            usage,
        });
    }
}
