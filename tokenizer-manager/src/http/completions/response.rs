//! The answer of a completions request without streaming.

use std::sync::Arc;

use axum::response::Response;
use futures::future::try_join_all;
use serde::Serialize;

use super::echo::Echo;
use crate::{
    app::App,
    error::ApiResult,
    generation::{Delta, Generation},
    http::openai::{
        envelope::Envelope, finish_reason, logprobs::CompletionLogprobs, usage::UsageMeter,
    },
    submission::Submission,
};

/// The parts that a choice shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// True if the prompt is shown before the output.
    pub echo: bool,
    /// True if log-probabilities are shown.
    pub logprobs: bool,
    /// True if there is any output.
    pub output: bool,
    /// True if special tokens are left out of the output and of the echo.
    pub skip_special_tokens: bool,
}

impl Shape {
    /// Returns the texts to echo, one per prompt; empty without echo.
    pub(super) async fn echoes(self, app: &App, submission: &Submission) -> ApiResult<Vec<Echo>> {
        if !self.echo {
            return Ok(Vec::new());
        }
        let prompts = submission.prompts.clone();
        let tokens: usize = prompts.iter().map(|prompt| prompt.len()).sum();
        let tokenizer = app.text.tokenizer.clone();
        let work = move || {
            let echo =
                |prompt: &Arc<[u32]>| Echo::new(&tokenizer, prompt, self.skip_special_tokens);
            prompts.iter().map(echo).collect()
        };
        let bytes = tokens.saturating_mul(4);
        app.text.pool.run_aside(bytes, work).await
    }

    /// Returns the log-probabilities of a delta. The prompt's log-probabilities come
    /// with the first delta.
    pub(super) fn logprobs(
        self,
        app: &App,
        echo: Option<&Echo>,
        delta: &Delta,
    ) -> Option<CompletionLogprobs> {
        if !self.logprobs {
            return None;
        }
        let tokenizer = &app.text.tokenizer;
        let mut logprobs = CompletionLogprobs::default();
        if let Some(echo) = echo {
            echo.describe(tokenizer, &delta.prompt_logprobs, &mut logprobs);
        }
        let base = echo.map_or(0, |echo| echo.chars);
        logprobs.extend(tokenizer, &delta.tokens, base);
        Some(logprobs)
    }
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: &'static str,
}

/// Waits for all choices. The first choice that fails ends the others.
pub(super) async fn answer(
    envelope: &Envelope,
    shape: Shape,
    mut submission: Submission,
) -> ApiResult<Response> {
    let mut meter = UsageMeter::new(&submission);
    let echoes = shape.echoes(&envelope.app, &submission).await?;
    let generations = std::mem::take(&mut submission.generations);
    let ended = try_join_all(generations.into_iter().map(Generation::complete)).await?;
    let mut choices = Vec::with_capacity(ended.len());
    for (index, (whole, end)) in ended.into_iter().enumerate() {
        meter.end(index, &end);
        let echo = echoes.get(index / submission.n);
        let logprobs = shape.logprobs(&envelope.app, echo, &whole);
        let text = match echo {
            Some(echo) => format!("{}{}", echo.text, whole.text),
            None => whole.text,
        };
        choices.push(Choice {
            index,
            text,
            logprobs,
            finish_reason: finish_reason(&end)?,
        });
    }
    envelope.whole("text_completion", &choices, meter.body())
}
