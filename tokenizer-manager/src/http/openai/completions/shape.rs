//! The parts that a completion shows.

use std::sync::Arc;

use super::echo::Echo;
use crate::{app::App, error::ApiResult, submission::Submission};

/// The parts that each choice of a request shows.
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
}
