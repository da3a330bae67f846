//! The completions API's form of choices. Streamed, a choice has one chunk per delta, of
//! which the last has the finish reason.

use serde::Serialize;

use super::{echo::Echo, shape::Shape};
use crate::{
    app::App,
    error::ApiResult,
    generation::{Delta, Event},
    http::{
        openai::{answer::Form, envelope::Chunks, finish_reason, logprobs::CompletionLogprobs},
        sse::Frames,
    },
    submission::Submission,
};

/// Form of the choices of one completions request.
pub(super) struct CompletionForm {
    shape: Shape,
    n: usize,
    echoes: Vec<Echo>,
    /// True for each choice whose prompt was sent.
    echoed: Vec<bool>,
}

/// A choice of a whole answer or of a chunk.
#[derive(Serialize)]
pub(super) struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

impl CompletionForm {
    pub(super) async fn new(app: &App, shape: Shape, submission: &Submission) -> ApiResult<Self> {
        Ok(Self {
            shape,
            n: submission.n,
            echoes: shape.echoes(app, submission).await?,
            echoed: vec![false; submission.generations.len()],
        })
    }
}

impl Form for CompletionForm {
    const WHOLE: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";
    type Choice = Choice;

    /// Returns a choice with this output. The prompt's text and log-probabilities come
    /// with the first.
    fn whole(&mut self, app: &App, index: usize, output: Delta) -> ApiResult<Choice> {
        let tokenizer = &app.text.tokenizer;
        let mut choice = Choice {
            index,
            text: String::new(),
            logprobs: self.shape.logprobs.then(CompletionLogprobs::default),
            finish_reason: None,
        };
        let echo = self.echoes.get(index / self.n);
        if let Some(echo) = echo {
            if !std::mem::replace(&mut self.echoed[index], true) {
                choice.text.push_str(&echo.text);
            }
            if let Some(logprobs) = &mut choice.logprobs {
                echo.describe(tokenizer, &output.prompt_logprobs, logprobs);
            }
        }
        let base = echo.map_or(0, |echo| echo.chars);
        for event in output.events {
            match event {
                Event::Text(text) => {
                    match choice.text.is_empty() {
                        true => choice.text = text.text,
                        false => choice.text.push_str(&text.text),
                    }
                    if let Some(logprobs) = &mut choice.logprobs {
                        logprobs.extend(tokenizer, &text.tokens, base);
                    }
                }
                // This surface asks for no parts, so all output is text.
                Event::Reasoning(_) | Event::ToolCall(_) => {}
                Event::End(end) => choice.finish_reason = Some(finish_reason(&end)?),
            }
        }
        Ok(choice)
    }

    fn chunks(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()> {
        match delta.end() {
            Some(end) => chunks.meter.end(index, end),
            None => chunks.meter.progress(index, delta.completion_tokens),
        }
        let choice = self.whole(&chunks.envelope.app, index, delta)?;
        chunks.choice(choice, frames);
        Ok(())
    }
}
