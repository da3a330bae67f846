//! Refusal of features of OpenAI's chat API that this version does not support. They
//! are refused rather than ignored.

use serde_json::Value;

use super::ChatRequest;
use crate::error::{ApiError, ApiResult};

pub(super) fn check(request: &ChatRequest) -> ApiResult<()> {
    if request.functions.is_some() || request.function_call.is_some() {
        let param = if request.functions.is_some() {
            "functions"
        } else {
            "function_call"
        };
        let message = format!("'{param}' is not supported by this version; send 'tools'.");
        return Err(ApiError::unsupported(param, message));
    }
    if let Some(format) = &request.response_format
        && !matches!(format, Value::Null)
    {
        match format.get("type").and_then(Value::as_str) {
            Some("text") => {}
            Some(kind @ ("json_object" | "json_schema")) => {
                return Err(unsupported(
                    "response_format",
                    &format!("The response format '{kind}'"),
                ));
            }
            _ => {
                return Err(ApiError::invalid(
                    "response_format",
                    "Invalid value for 'response_format': expected an object whose 'type' is \
                     'text'.",
                ));
            }
        }
    }
    if request.stream_reasoning == Some(false) {
        return Err(ApiError::unsupported(
            "stream_reasoning",
            "'stream_reasoning' is not supported by this version: reasoning is streamed as it \
             comes; leave it out, or set 'include_reasoning' to false.",
        ));
    }
    Ok(())
}

fn unsupported(param: &'static str, what: &str) -> ApiError {
    ApiError::unsupported(param, format!("{what} is not supported by this version."))
}
