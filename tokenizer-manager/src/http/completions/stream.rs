//! A streamed answer: one chunk per delta, of which the last has the finish reason. If
//! requested, one more chunk has the token counts.

use axum::response::Response;
use serde::Serialize;

use super::{echo::Echo, response::Shape};
use crate::{
    error::ApiResult,
    generation::Delta,
    http::{
        openai::{
            envelope::{Choices, ChunkFramer, Chunks, Envelope},
            finish_reason,
            logprobs::CompletionLogprobs,
            params::Streaming,
            stream,
            usage::UsageMeter,
        },
        sse::{self, Frames},
    },
    submission::Submission,
};

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

struct CompletionChoices {
    shape: Shape,
    n: usize,
    echoes: Vec<Echo>,
    /// True for each choice whose prompt was sent.
    echoed: Vec<bool>,
}

/// Streams all choices.
pub(super) async fn answer(
    envelope: Envelope,
    shape: Shape,
    submission: Submission,
    streaming: Streaming,
) -> ApiResult<Response> {
    let framer = ChunkFramer {
        choices: CompletionChoices {
            shape,
            n: submission.n,
            echoes: shape.echoes(&envelope.app, &submission).await?,
            echoed: vec![false; submission.generations.len()],
        },
        chunks: Chunks {
            envelope,
            object: "text_completion",
            streaming,
            meter: UsageMeter::new(&submission),
        },
    };
    let deltas = stream::start(submission).await?;
    Ok(sse::response(deltas, framer))
}

impl Choices for CompletionChoices {
    fn delta(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        mut delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()> {
        let finish_reason = delta.end.as_ref().map(finish_reason).transpose()?;
        match &delta.end {
            Some(end) => chunks.meter.end(index, end),
            None => chunks.meter.progress(index, delta.completion_tokens),
        }
        let echo = self.echoes.get(index / self.n);
        let logprobs = self.shape.logprobs(&chunks.envelope.app, echo, &delta);
        if let Some(echo) = echo
            && !std::mem::replace(&mut self.echoed[index], true)
        {
            delta.text.insert_str(0, &echo.text);
        }
        let choice = Choice {
            index,
            text: &delta.text,
            logprobs,
            finish_reason,
        };
        chunks.choice(choice, frames);
        Ok(())
    }
}
