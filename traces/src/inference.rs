//! The span of a request to the model, by the conventions for generative models.

use std::time::Instant;

use lockstep_types::{
    request::{FinishReason, Usage},
    sampling::SamplingParams,
};
use opentelemetry::{Array, StringValue, Value};

use crate::{Span, names};

/// What a request asks of the model.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// `chat`, `text_completion` or `generate_content`.
    pub operation: &'static str,
    /// The model's name.
    pub model: &'a str,
    /// The id that its client and log lines know it by.
    pub id: &'a str,
    /// Tokens of a choice at the most, where the client limits them.
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Choices per prompt.
    pub choices: usize,
}

/// A request to the model that is traced: complete, and ended, when it is dropped.
#[derive(Debug)]
pub struct Inference {
    span: Span,
    since: Instant,
    has_token: bool,
    reasons: Vec<StringValue>,
    /// Of all its choices; prompts count once.
    usage: Usage,
}

impl Inference {
    /// Begins as a part of `parent`.
    pub fn begin(parent: &Span, asked: &Asked<'_>) -> Self {
        let Asked {
            operation, model, ..
        } = *asked;
        let mut span = parent.child(format!("{operation} {model}"));
        let sampling = asked.sampling;
        span.set(names::GEN_AI_OPERATION_NAME, operation);
        span.set(names::GEN_AI_PROVIDER_NAME, names::PROVIDER);
        span.set(names::GEN_AI_REQUEST_MODEL, model.to_owned());
        span.set(names::GEN_AI_RESPONSE_MODEL, model.to_owned());
        span.set(names::GEN_AI_RESPONSE_ID, asked.id.to_owned());
        if let Some(most) = asked.max_tokens {
            span.set(names::GEN_AI_REQUEST_MAX_TOKENS, i64::from(most));
        }
        // As people write it: 0.7, and not what an f32 makes of that.
        let decimal = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
        let mut number = |name, value: f32| span.set(name, decimal(value));
        number(names::GEN_AI_REQUEST_TEMPERATURE, sampling.temperature);
        number(names::GEN_AI_REQUEST_TOP_P, sampling.top_p);
        if sampling.frequency_penalty != 0.0 {
            number(
                names::GEN_AI_REQUEST_FREQUENCY_PENALTY,
                sampling.frequency_penalty,
            );
        }
        if sampling.presence_penalty != 0.0 {
            number(
                names::GEN_AI_REQUEST_PRESENCE_PENALTY,
                sampling.presence_penalty,
            );
        }
        if sampling.top_k > 0 {
            span.set(names::GEN_AI_REQUEST_TOP_K, i64::from(sampling.top_k));
        }
        if asked.choices != 1 {
            let choices = i64::try_from(asked.choices).unwrap_or(i64::MAX);
            span.set(names::GEN_AI_REQUEST_CHOICE_COUNT, choices);
        }
        Self {
            span,
            since: Instant::now(),
            has_token: false,
            reasons: Vec::new(),
            usage: Usage::default(),
        }
    }

    /// What it consists of becomes a part of this.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Its prompts have so many tokens.
    pub fn prompts(&mut self, tokens: usize) {
        self.usage.prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    }

    /// A token of one of its choices came.
    pub fn token(&mut self) {
        if !std::mem::replace(&mut self.has_token, true) {
            let seconds = self.since.elapsed().as_secs_f64();
            self.span
                .set(names::GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, seconds);
        }
    }

    /// One of its choices ended well.
    pub fn ended(&mut self, reason: FinishReason, usage: &Usage) {
        self.reasons.push(names::reason(reason).into());
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.cached_tokens += usage.cached_tokens;
    }

    /// It failed, or one of its choices did.
    pub fn fail(&mut self, code: impl Into<Value>, why: String) {
        self.span.set(names::ERROR_TYPE, code);
        self.span.fail(why);
    }
}

impl Drop for Inference {
    fn drop(&mut self) {
        let usage = self.usage;
        let mut set = |name, tokens: u32| self.span.set(name, i64::from(tokens));
        set(names::GEN_AI_USAGE_INPUT_TOKENS, usage.prompt_tokens);
        set(names::GEN_AI_USAGE_OUTPUT_TOKENS, usage.completion_tokens);
        set(
            names::GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
            usage.cached_tokens,
        );
        let reasons = Array::String(std::mem::take(&mut self.reasons));
        let reasons = Value::Array(reasons);
        self.span
            .set(names::GEN_AI_RESPONSE_FINISH_REASONS, reasons);
    }
}
