//! Token counts of a whole request.

use lockstep_proto::request::Usage;
use serde::Serialize;

use crate::{submission::Submission, tally::Tally};

/// OpenAI's `usage` object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

/// Counts over all choices. A prompt counts once, however many choices it has;
/// of its cached tokens those that its first choice found count, since the
/// others find what the first one left.
#[derive(Debug, Clone)]
pub(crate) struct UsageMeter {
    n: usize,
    prompt_tokens: u64,
    choices: Vec<Usage>,
}

impl UsageMeter {
    pub(crate) fn new(submission: &Submission) -> Self {
        let prompt_tokens = submission.prompts.iter().map(|p| p.len() as u64).sum();
        if let Some(tally) = Tally::current() {
            tally.prompt(prompt_tokens);
        }
        Self {
            n: submission.n,
            prompt_tokens,
            choices: vec![Usage::default(); submission.prompts.len() * submission.n],
        }
    }

    /// Choice `index` has so many tokens by now.
    pub(crate) fn progress(&mut self, index: usize, completion_tokens: u32) {
        self.choices[index].completion_tokens = completion_tokens;
    }

    /// Choice `index` ended.
    pub(crate) fn end(&mut self, index: usize, usage: Usage) {
        self.choices[index] = usage;
    }

    /// The counts so far.
    pub(crate) fn body(&self) -> UsageBody {
        let completion_tokens: u64 = self
            .choices
            .iter()
            .map(|usage| u64::from(usage.completion_tokens))
            .sum();
        let cached = self.choices.iter().step_by(self.n.max(1));
        UsageBody {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: cached.map(|usage| u64::from(usage.cached_tokens)).sum(),
            },
        }
    }
}
