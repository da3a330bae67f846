//! The span of a request to the model, by the conventions for generative models.

use std::time::Instant;

use lockstep_types::{
    request::{FinishReason, Usage},
    sampling::SamplingParams,
};
use opentelemetry::{Array, StringValue, Value};

use crate::{Span, names};

/// Properties of a request to the model.
#[derive(Debug, Clone, Copy)]
pub struct InferenceRequest<'a> {
    /// Operation: `chat`, `text_completion` or `generate_content`.
    pub operation: &'static str,
    /// Name of the model.
    pub model: &'a str,
    /// Id of the request for its client and in log lines.
    pub id: &'a str,
    /// Largest number of tokens of a choice, if the client limits it.
    pub max_tokens: Option<u32>,
    /// Parameters by which tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Number of choices per prompt.
    pub choices: usize,
}

/// A traced request to the model. When dropped, it is complete and its span ends.
#[derive(Debug)]
pub struct Inference {
    span: Span,
    since: Instant,
    has_token: bool,
    reasons: Vec<StringValue>,
    /// Tokens of all its choices; prompts count once.
    usage: Usage,
}

impl Inference {
    /// Begins the request's span as a part of `parent`.
    pub fn begin(parent: &Span, request: &InferenceRequest<'_>) -> Self {
        let InferenceRequest {
            operation, model, ..
        } = *request;
        let mut span = parent.child(format!("{operation} {model}"));
        let sampling = request.sampling;
        span.set(names::GEN_AI_OPERATION_NAME, operation);
        span.set(names::GEN_AI_PROVIDER_NAME, names::PROVIDER);
        span.set(names::GEN_AI_REQUEST_MODEL, model.to_owned());
        span.set(names::GEN_AI_RESPONSE_MODEL, model.to_owned());
        span.set(names::GEN_AI_RESPONSE_ID, request.id.to_owned());
        if let Some(most) = request.max_tokens {
            span.set(names::GEN_AI_REQUEST_MAX_TOKENS, i64::from(most));
        }
        // Rounded as people write it: 0.7, not an f32's decimal expansion.
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
        if request.choices != 1 {
            let choices = i64::try_from(request.choices).unwrap_or(i64::MAX);
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

    /// Span of the request, the parent of its parts' spans.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Sets the number of tokens of the prompts.
    pub fn prompts(&mut self, tokens: usize) {
        self.usage.prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    }

    /// Notes that a token of one of the choices came.
    pub fn token(&mut self) {
        if !std::mem::replace(&mut self.has_token, true) {
            let seconds = self.since.elapsed().as_secs_f64();
            self.span
                .set(names::GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, seconds);
        }
    }

    /// Notes that one of the choices ended well.
    pub fn ended(&mut self, reason: FinishReason, usage: &Usage) {
        self.reasons.push(names::reason(reason).into());
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.cached_tokens += usage.cached_tokens;
    }

    /// Notes that the request failed, or that one of its choices did.
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
