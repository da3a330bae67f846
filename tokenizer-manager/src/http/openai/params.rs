//! Parameters of OpenAI's generating routes, with the extensions that SGLang and vLLM
//! share.

use serde::Deserialize;

use crate::{
    error::{ApiError, ApiResult},
    http::json::Object,
};

/// Declares a request type: its own fields, then the fields that both generating routes
/// have.
macro_rules! openai_request {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $crate::http::sampling::with_sampling_fields! {
            $(#[$meta])*
            $vis struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
                pub model: Option<String>,
                #[serde(default, deserialize_with = "crate::http::json::integer")]
                pub max_tokens: Option<i64>,
                #[serde(default, deserialize_with = "crate::http::json::integer")]
                pub n: Option<i64>,
                #[serde(default, deserialize_with = "crate::http::json::integer")]
                pub best_of: Option<i64>,
                pub stop: Option<$crate::http::json::OneOrMany<String>>,
                pub skip_special_tokens: Option<bool>,
                pub include_stop_str_in_output: Option<bool>,
                pub stream: Option<bool>,
                pub stream_options: Option<$crate::http::json::Object<$crate::http::openai::params::StreamOptions>>,
                #[serde(default, deserialize_with = "crate::http::json::integer")]
                pub priority: Option<i32>,
                pub speculative: Option<$crate::http::json::Object<$crate::http::json::Speculative>>,
                #[serde(default, deserialize_with = "crate::http::json::integer", alias = "routed_dp_rank")]
                pub data_parallel_rank: Option<i64>,
                #[serde(alias = "extra_key")]
                pub cache_salt: Option<String>,
                pub response_format: Option<serde_json::Value>,
                pub structured_outputs: Option<serde_json::Value>,
                pub guided_json: Option<serde_json::Value>,
                pub guided_regex: Option<String>,
                pub guided_choice: Option<Vec<String>>,
                pub json_schema: Option<serde_json::Value>,
                pub regex: Option<String>,
                pub guided_grammar: Option<String>,
                pub ebnf: Option<String>,
                pub grammar: Option<String>,
                pub structural_tag: Option<serde_json::Value>,
            }
            min_tokens: min_tokens
        }

        impl $name {
            /// Moves the common fields into `spec`.
            pub fn common(&mut self, spec: &mut $crate::submission::GenerateSpec) -> $crate::error::ApiResult<()> {
                spec.n = $crate::http::openai::params::choices(self.n, self.best_of)?;
                spec.stops = self.stop.take().map($crate::http::json::OneOrMany::into_vec).unwrap_or_default();
                spec.include_stop = self.include_stop_str_in_output.unwrap_or(false);
                spec.skip_special_tokens = self.skip_special_tokens.unwrap_or(true);
                spec.priority = self.priority;
                spec.data_parallel_rank = self.data_parallel_rank;
                spec.cache_salt = self.cache_salt.take();
                spec.speculative = self.speculative.unwrap_or_default().0.spec();
                spec.sampling = self.sampling();
                let constraint = $crate::http::constraint::ConstraintFields {
                    response_format: self.response_format.take(),
                    structured_outputs: self.structured_outputs.take(),
                    guided_json: self.guided_json.take(),
                    guided_regex: self.guided_regex.take(),
                    guided_choice: self.guided_choice.take(),
                    json_schema: self.json_schema.take(),
                    regex: self.regex.take(),
                    guided_grammar: self.guided_grammar.take(),
                    ebnf: self.ebnf.take(),
                    grammar: self.grammar.take(),
                    structural_tag: self.structural_tag.take(),
                };
                spec.constraint = constraint.spec("")?;
                Ok(())
            }

            /// Returns the streaming options; `None` for an answer without streaming.
            pub fn streaming(&self) -> $crate::error::ApiResult<Option<$crate::http::openai::params::Streaming>> {
                $crate::http::openai::params::streaming(self.stream, self.stream_options)
            }
        }
    };
}
pub(crate) use openai_request;

/// Returns `n`. A `best_of` other than `n` is an error.
pub(crate) fn choices(n: Option<i64>, best_of: Option<i64>) -> ApiResult<i64> {
    let n = n.unwrap_or(1);
    match best_of {
        Some(best_of) if best_of != n => Err(ApiError::unsupported(
            "best_of",
            format!(
                "'best_of' ({best_of}) other than 'n' ({n}) is not supported by this version; ask \
                 for n choices and rank them by their logprobs."
            ),
        )),
        _ => Ok(n),
    }
}

/// OpenAI's `stream_options`; `continuous_usage_stats` is vLLM's.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// Options of a streamed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// True if one more chunk has the token counts. The other chunks then have `usage:
    /// null`.
    pub usage: bool,
    /// True if every chunk has the token counts.
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
