//! Token counts of a whole request.

use lockstep_types::request::{SpeculationUsage, Usage};
use serde::Serialize;

use crate::{generation::End, request_stats::RequestStats, submission::Submission};

/// OpenAI's `usage` object. It has the counts of speculation twice: under OpenAI's
/// names, and by position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculative: Option<SpeculativeBody>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

/// OpenAI's counts of output tokens by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct CompletionDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<u64>,
    #[serde(flatten)]
    predictions: Option<Predictions>,
}

/// OpenAI's counts of predictions: a prediction is a drafted token that was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Predictions {
    accepted_prediction_tokens: u32,
    rejected_prediction_tokens: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SpeculativeBody {
    verify_steps: u32,
    draft_tokens: u32,
    accepted_tokens: u32,
    proposed_per_position: Vec<u32>,
    accepted_per_position: Vec<u32>,
}

impl From<&SpeculationUsage> for Predictions {
    fn from(usage: &SpeculationUsage) -> Self {
        let accepted = usage.accepted_tokens();
        Self {
            accepted_prediction_tokens: accepted,
            rejected_prediction_tokens: usage.draft_tokens.saturating_sub(accepted),
        }
    }
}

impl From<&SpeculationUsage> for SpeculativeBody {
    fn from(usage: &SpeculationUsage) -> Self {
        let mut accepted_per_position = usage.accepted.clone();
        let positions = usage.proposed.len().max(accepted_per_position.len());
        accepted_per_position.resize(positions, 0);
        Self {
            verify_steps: usage.verify_steps,
            draft_tokens: usage.draft_tokens,
            accepted_tokens: usage.accepted_tokens(),
            proposed_per_position: usage.proposed.clone(),
            accepted_per_position,
        }
    }
}

/// Token counts over all choices. A prompt counts once for any number of choices.
/// Cached tokens count only for a prompt's first choice, because the other choices find
/// the tokens that the first one left.
#[derive(Debug, Clone)]
pub(crate) struct UsageMeter {
    n: usize,
    prompt_tokens: u64,
    choices: Vec<Usage>,
    /// Reasoning of the choices that have ended; `None` if no reasoning was told apart.
    reasoning_tokens: Option<u64>,
    speculation: Option<SpeculationUsage>,
}

/// Sums over all choices, for APIs with counts of their own form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Tokens of the prompts that were cached.
    pub cached_tokens: u64,
    /// Tokens of the outputs.
    pub completion_tokens: u64,
    /// Tokens of the outputs that are reasoning; `None` if no reasoning was told apart.
    pub reasoning_tokens: Option<u64>,
}

impl UsageMeter {
    pub(crate) fn new(submission: &Submission) -> Self {
        let prompt_tokens = submission.prompts.iter().map(|p| p.len() as u64).sum();
        if let Some(stats) = RequestStats::current() {
            stats.prompt(prompt_tokens);
        }
        Self {
            n: submission.n,
            prompt_tokens,
            choices: vec![Usage::default(); submission.prompts.len() * submission.n],
            reasoning_tokens: None,
            speculation: None,
        }
    }

    /// Sets the number of tokens that choice `index` has so far.
    pub(crate) fn progress(&mut self, index: usize, completion_tokens: u32) {
        self.choices[index].completion_tokens = completion_tokens;
    }

    /// Records the end of choice `index`.
    pub(crate) fn end(&mut self, index: usize, end: &End) {
        self.choices[index] = end.usage;
        if let Some(tokens) = end.reasoning_tokens {
            *self.reasoning_tokens.get_or_insert_default() += u64::from(tokens);
        }
        if let Some(usage) = &end.speculation {
            self.speculation.get_or_insert_default().add(usage);
        }
    }

    fn details(&self) -> Option<CompletionDetails> {
        let predictions = self.speculation.as_ref().map(Into::into);
        let known = predictions.is_some() || self.reasoning_tokens.is_some();
        known.then_some(CompletionDetails {
            reasoning_tokens: self.reasoning_tokens,
            predictions,
        })
    }

    /// Returns the sums so far.
    pub(crate) fn totals(&self) -> Totals {
        let completions = self.choices.iter();
        let cached = self.choices.iter().step_by(self.n.max(1));
        Totals {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: cached.map(|usage| u64::from(usage.cached_tokens)).sum(),
            completion_tokens: completions
                .map(|usage| u64::from(usage.completion_tokens))
                .sum(),
            reasoning_tokens: self.reasoning_tokens,
        }
    }

    /// Returns the counts so far.
    pub(crate) fn body(&self) -> UsageBody {
        let Totals {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            ..
        } = self.totals();
        UsageBody {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens },
            completion_tokens_details: self.details(),
            speculative: self.speculation.as_ref().map(Into::into),
        }
    }
}
