//! Parameters of OpenAI's generating routes, with the extensions that SGLang
//! and vLLM share.

use serde::Deserialize;

use crate::{
    error::{ApiError, ApiResult},
    http::json::Object,
    submission::{Draft, SamplingDraft, SpeculativeDraft},
};

/// Declares a request type with the common fields after its own.
macro_rules! openai_request {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            pub model: Option<String>,
            pub max_tokens: Option<i64>,
            pub temperature: Option<f64>,
            pub top_p: Option<f64>,
            pub top_k: Option<i64>,
            pub min_p: Option<f64>,
            pub n: Option<i64>,
            pub best_of: Option<i64>,
            pub stop: Option<$crate::http::json::OneOrMany<String>>,
            pub stop_token_ids: Option<Vec<u32>>,
            pub seed: Option<$crate::http::json::Seed>,
            pub presence_penalty: Option<f64>,
            pub frequency_penalty: Option<f64>,
            pub repetition_penalty: Option<f64>,
            pub logit_bias: Option<$crate::http::json::LogitBias>,
            pub min_tokens: Option<i64>,
            pub ignore_eos: Option<bool>,
            pub skip_special_tokens: Option<bool>,
            pub include_stop_str_in_output: Option<bool>,
            pub stream: Option<bool>,
            pub stream_options: Option<$crate::http::json::Object<$crate::http::openai::params::StreamOptions>>,
            pub priority: Option<i32>,
            pub speculative: Option<$crate::http::json::Object<$crate::http::json::Speculative>>,
        }

        impl $name {
            /// Moves the common fields into `draft`.
            pub fn common(&mut self, draft: &mut $crate::submission::Draft) -> $crate::error::ApiResult<()> {
                $crate::http::openai::params::Common {
                    n: self.n,
                    best_of: self.best_of,
                    stop: self.stop.take(),
                    include_stop: self.include_stop_str_in_output,
                    skip_special_tokens: self.skip_special_tokens,
                    priority: self.priority,
                    speculative: self.speculative.unwrap_or_default().0.draft(),
                    sampling: $crate::submission::SamplingDraft {
                        temperature: self.temperature,
                        top_p: self.top_p,
                        top_k: self.top_k,
                        min_p: self.min_p,
                        presence_penalty: self.presence_penalty,
                        frequency_penalty: self.frequency_penalty,
                        repetition_penalty: self.repetition_penalty,
                        logit_bias: self.logit_bias.take().unwrap_or_default().0,
                        seed: self.seed.map(|seed| seed.0),
                        min_tokens: self.min_tokens,
                        stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                        ignore_eos: self.ignore_eos.unwrap_or(false),
                        min_tokens_field: "min_tokens",
                    },
                }
                .fill(draft)
            }

            /// Whether and how the answer is streamed.
            pub fn streaming(&self) -> $crate::error::ApiResult<Option<$crate::http::openai::params::Streaming>> {
                $crate::http::openai::params::streaming(self.stream, self.stream_options)
            }
        }
    };
}
pub(crate) use openai_request;

/// The common fields that go into a draft.
pub(crate) struct Common {
    pub n: Option<i64>,
    pub best_of: Option<i64>,
    pub stop: Option<crate::http::json::OneOrMany<String>>,
    pub include_stop: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub priority: Option<i32>,
    pub speculative: SpeculativeDraft,
    pub sampling: SamplingDraft,
}

impl Common {
    pub(crate) fn fill(self, draft: &mut Draft) -> ApiResult<()> {
        draft.n = self.n.unwrap_or(1);
        if let Some(best_of) = self.best_of
            && best_of != draft.n
        {
            return Err(ApiError::unsupported(
                "best_of",
                format!(
                    "'best_of' ({best_of}) other than 'n' ({}) is not supported by this version; \
                     ask for n choices and rank them by their logprobs.",
                    draft.n
                ),
            ));
        }
        draft.stops = self
            .stop
            .map(crate::http::json::OneOrMany::into_vec)
            .unwrap_or_default();
        draft.include_stop = self.include_stop.unwrap_or(false);
        draft.skip_special_tokens = self.skip_special_tokens.unwrap_or(true);
        draft.priority = self.priority;
        draft.speculative = self.speculative;
        draft.sampling = self.sampling;
        Ok(())
    }
}

/// OpenAI's `stream_options`; `continuous_usage_stats` is vLLM's.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// How an answer is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// One more chunk with the counts; the others say `usage: null`.
    pub usage: bool,
    /// Counts in every chunk.
    pub continuous: bool,
}

pub(crate) fn streaming(
    stream: Option<bool>,
    options: Option<Object<StreamOptions>>,
) -> ApiResult<Option<Streaming>> {
    if !stream.unwrap_or(false) {
        return match options {
            None => Ok(None),
            Some(_) => Err(ApiError::invalid(
                "stream_options",
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            )),
        };
    }
    let Object(options) = options.unwrap_or_default();
    let usage = options.include_usage.unwrap_or(false);
    Ok(Some(Streaming {
        usage,
        continuous: usage && options.continuous_usage_stats.unwrap_or(false),
    }))
}
