//! Refusal of fields that other servers support and this version does not. They are
//! refused rather than ignored. One table serves all routes that generate.

mod fields;

use std::{fmt, sync::Arc};

use axum::extract::{FromRequest, Request};
use fields::{FIELDS, Field, Neutral};
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
/// `/v1/messages` and the count of its tokens.
pub(super) const MESSAGES: Routes = Routes(16);
/// `/v1/responses`.
pub(super) const RESPONSES: Routes = Routes(32);
const OPENAI: Routes = Routes(1 | 2 | 32);
/// `/generate` and its `sampling_params`.
const NATIVE: Routes = Routes(4 | 8);
/// `/v1/messages` and `/v1/responses`.
const CONVERSATIONS: Routes = Routes(16 | 32);
const ALL: Routes = Routes(1 | 2 | 4 | 8 | 16 | 32);

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
        Value::Null => true,
        Value::Bool(value) => *value == matches!(field.neutral, Neutral::True),
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
            Neutral::Nothing | Neutral::Text | Neutral::True => false,
        },
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
