//! Refusal of fields that other servers support and this version does not. They are
//! refused rather than ignored. One table serves all routes that generate.

use std::{fmt, sync::Arc};

use axum::extract::{FromRequest, Request};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::body;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// A set of generating routes, one bit each, since a field may have a meaning on one
/// route only.
#[derive(Clone, Copy)]
pub(super) struct Routes(u8);

/// `/v1/chat/completions`.
pub(super) const CHAT: Routes = Routes(1);
/// `/v1/completions`.
pub(super) const COMPLETIONS: Routes = Routes(2);
/// `/generate`.
pub(super) const GENERATE: Routes = Routes(4);
/// `sampling_params` of `/generate`.
const SAMPLING_PARAMS: Routes = Routes(8);
const OPENAI: Routes = Routes(1 | 2);
/// `/generate` and its `sampling_params`.
const NATIVE: Routes = Routes(4 | 8);
const ALL: Routes = Routes(1 | 2 | 4 | 8);

/// A request type with its route. The route decides which fields are refused.
pub(super) trait Generating: DeserializeOwned + Send + 'static {
    /// Route of the request.
    const ROUTE: Routes;
    /// Supported keys of the request's `sampling_params`, with their types.
    const PARAMS: Params = &[];
}

type Params = &'static [(&'static str, &'static str)];

/// The JSON body of a generating route.
pub(super) struct GenerateJson<T>(pub T);

impl<T: Generating> FromRequest<Arc<App>> for GenerateJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> ApiResult<Self> {
        let parse = |body: &[u8]| {
            check(body, T::ROUTE, T::PARAMS)?;
            body::parse(body).map(Self)
        };
        body::read_json(request, app, parse).await
    }
}

/// A value that requests nothing, besides null, false and empty values.
#[derive(Clone, Copy)]
enum Neutral {
    Nothing,
    Number(f64),
    Text,
}

struct Field {
    name: &'static str,
    routes: Routes,
    neutral: Neutral,
    /// Advice about the field.
    remedy: &'static str,
}

const LEAVE_OUT: &str = "leave it out";
const IN_PARAMS: &str = "use 'sampling_params.json_schema' or 'sampling_params.regex'";
const NO_GRAMMAR: &str = "use a JSON schema or a regular expression";

const fn field(name: &'static str, routes: Routes) -> Field {
    Field {
        name,
        routes,
        neutral: Neutral::Nothing,
        remedy: LEAVE_OUT,
    }
}

const fn neutral(name: &'static str, number: f64) -> Field {
    Field {
        neutral: Neutral::Number(number),
        ..field(name, ALL)
    }
}

const fn instead(name: &'static str, routes: Routes, remedy: &'static str) -> Field {
    Field {
        remedy,
        ..field(name, routes)
    }
}

/// Unsupported fields of OpenAI, SGLang, vLLM and llama.cpp.
const FIELDS: &[Field] = &[
    // Structured output.
    instead("guided_json", NATIVE, IN_PARAMS),
    instead("guided_regex", NATIVE, IN_PARAMS),
    instead("guided_choice", NATIVE, IN_PARAMS),
    instead("structured_outputs", NATIVE, IN_PARAMS),
    instead("response_format", NATIVE, IN_PARAMS),
    instead("json_schema", GENERATE, IN_PARAMS),
    instead("regex", GENERATE, IN_PARAMS),
    instead("guided_grammar", ALL, NO_GRAMMAR),
    instead("ebnf", ALL, NO_GRAMMAR),
    instead("grammar", ALL, NO_GRAMMAR),
    instead("structural_tag", ALL, NO_GRAMMAR),
    field("guided_whitespace_pattern", ALL),
    // Adapters.
    field("lora_path", ALL),
    field("lora", ALL),
    field("lora_request", ALL),
    // Fields that would change the result.
    field("bad_words", ALL),
    field("allowed_token_ids", ALL),
    field("use_beam_search", ALL),
    field("custom_logit_processor", ALL),
    field("logits_processors", ALL),
    field("stop_regex", ALL),
    field("samplers", ALL),
    neutral("length_penalty", 1.0),
    neutral("typical_p", 1.0),
    neutral("tfs_z", 1.0),
    neutral("top_a", 0.0),
    neutral("mirostat", 0.0),
    neutral("dry_multiplier", 0.0),
    neutral("xtc_probability", 0.0),
    neutral("dynatemp_range", 0.0),
    Field {
        remedy: "use 'repetition_penalty'",
        ..neutral("repeat_penalty", 1.0)
    },
    Field {
        // -1 means no limit, which is the chat route's default.
        neutral: Neutral::Number(-1.0),
        ..instead("n_predict", CHAT, "use 'max_tokens'")
    },
    instead("n_predict", COMPLETIONS, "use 'max_tokens'"),
    instead(
        "n_predict",
        Routes(4 | 8),
        "use 'sampling_params.max_new_tokens'",
    ),
    instead(
        "speculative",
        SAMPLING_PARAMS,
        "put it beside 'sampling_params'",
    ),
    instead(
        "max_tokens",
        SAMPLING_PARAMS,
        "use 'sampling_params.max_new_tokens'",
    ),
    instead(
        "min_tokens",
        SAMPLING_PARAMS,
        "use 'sampling_params.min_new_tokens'",
    ),
    field("custom_params", SAMPLING_PARAMS),
    Field {
        routes: SAMPLING_PARAMS,
        ..neutral("stream_interval", 1.0)
    },
    // Fields that would change the prompt.
    instead(
        "truncate_prompt_tokens",
        ALL,
        "send a prompt that fits and leave it out",
    ),
    field("prompt_embeds", ALL),
    field("input_embeds", ALL),
    field("image_data", ALL),
    field("audio_data", ALL),
    field("video_data", ALL),
    field("documents", CHAT),
    field("web_search_options", OPENAI),
    field("prediction", OPENAI),
    field("tools", COMPLETIONS),
    instead(
        "chat_template",
        OPENAI,
        "the operator chooses the template when the server starts, so leave it out",
    ),
    // Fields that would change the form of the answer.
    instead(
        "prompt_logprobs",
        CHAT,
        "leave it out, or use 'echo' and 'logprobs' of /v1/completions",
    ),
    instead("prompt_logprobs", COMPLETIONS, "use 'echo' and 'logprobs'"),
    instead(
        "prompt_logprobs",
        Routes(4 | 8),
        "use 'return_logprob' and 'logprob_start_len'",
    ),
    Field {
        remedy: "use 'logprobs', or 'top_logprobs_num' of /generate",
        ..neutral("n_probs", 0.0)
    },
    Field {
        routes: CHAT,
        remedy: "limit the whole answer by 'max_tokens', or set 'reasoning_effort' to \"none\"",
        ..neutral("thinking_token_budget", -1.0)
    },
    field("token_ids_logprob", GENERATE),
    field("return_hidden_states", ALL),
    field("return_token_ids", OPENAI),
    field("return_tokens_as_token_ids", OPENAI),
    field("echo", CHAT),
    field("audio", OPENAI),
    Field {
        neutral: Neutral::Text,
        ..field("modalities", ALL)
    },
];

/// Refuses a body that asks for an unsupported feature. A body that is not a JSON
/// object passes: parsing gives a better error.
fn check(body: &[u8], route: Routes, params: Params) -> ApiResult<()> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    Scan(route, params)
        .deserialize(&mut deserializer)
        .unwrap_or_default()
        .map_or(Ok(()), Err)
}

/// Visits the top-level fields and skips everything else.
struct Scan(Routes, Params);

impl<'de> DeserializeSeed<'de> for Scan {
    type Value = Option<ApiError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Scan {
    type Value = Option<ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut refusal = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "sampling_params" && self.0.0 == GENERATE.0 {
                refusal = refusal.or(nested(&name, self.1, &map.next_value()?));
            } else if let Some(field) = find(&name, self.0) {
                refusal = refusal.or(refuse(field, "", &map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(refusal)
    }
}

fn find(name: &str, route: Routes) -> Option<&'static Field> {
    FIELDS
        .iter()
        .find(|field| field.name == name && field.routes.0 & route.0 != 0)
}

/// Checks an object of fields, or a list of such objects.
fn nested(name: &str, params: Params, value: &Value) -> Option<ApiError> {
    let prefix = format!("{name}.");
    let in_object = |fields: &Map<String, Value>| {
        fields.iter().find_map(|(name, value)| {
            let known = params.iter().any(|(field, _)| field == name);
            match find(name, SAMPLING_PARAMS) {
                Some(field) => refuse(field, &prefix, value),
                None if known || WITHOUT_EFFECT.contains(&name.as_str()) => None,
                None => Some(unknown(format!("{prefix}{name}"))),
            }
        })
    };
    match value {
        Value::Object(fields) => in_object(fields),
        Value::Array(items) => items
            .iter()
            .find_map(|item| item.as_object().and_then(in_object)),
        _ => None,
    }
}

/// Keys of SGLang's `sampling_params` that change nothing with any served tokenizer.
const WITHOUT_EFFECT: [&str; 1] = ["spaces_between_special_tokens"];

/// Returns the error for an unknown key of `sampling_params`. As in SGLang, unknown
/// keys are refused, since a misspelt key would silently give the default's text.
/// Unknown fields at the top are accepted, since OpenAI's clients add some.
fn unknown(param: String) -> ApiError {
    let message =
        format!("Unknown parameter: '{param}'. /openapi.json lists those that are known.");
    ApiError {
        code: Some("unknown_parameter"),
        ..ApiError::invalid(param, message)
    }
}

fn refuse(field: &Field, prefix: &str, value: &Value) -> Option<ApiError> {
    let asks_nothing = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => {
            items.is_empty()
                || matches!(field.neutral, Neutral::Text)
                    && items.iter().all(|item| item.as_str() == Some("text"))
        }
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => match field.neutral {
            // The neutral values are small whole numbers, so the comparison is exact.
            Neutral::Number(neutral) => number.as_f64() == Some(neutral),
            Neutral::Nothing | Neutral::Text => false,
        },
        Value::Bool(true) => false,
    };
    let param = format!("{prefix}{}", field.name);
    let message = format!(
        "'{param}' is not supported by this version; {}.",
        field.remedy
    );
    (!asks_nothing).then(|| ApiError::unsupported(param, message))
}

#[cfg(test)]
mod tests;
