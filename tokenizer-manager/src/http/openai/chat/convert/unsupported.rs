//! Refusal of features of OpenAI's chat API that this version does not support. They
//! are refused rather than ignored.

use serde_json::Value;

use super::ChatRequest;
use crate::error::{ApiError, ApiResult};

pub(super) fn check(request: &ChatRequest) -> ApiResult<()> {
    tools(request)?;
    if request.functions.is_some() || request.function_call.is_some() {
        let param = if request.functions.is_some() {
            "functions"
        } else {
            "function_call"
        };
        return Err(unsupported(param, "Function calling"));
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
    Ok(())
}

/// Refuses tools unless `tool_choice` is "none". Tools may stand in the prompt, but
/// calls are not parsed from the output.
fn tools(request: &ChatRequest) -> ApiResult<()> {
    let has_tools = request
        .tools
        .as_ref()
        .is_some_and(|tools| !tools.is_empty());
    let none = matches!(&request.tool_choice, Some(Value::String(choice)) if choice == "none");
    let chosen = !matches!(&request.tool_choice, None | Some(Value::Null)) && !none;
    if has_tools && !none {
        return Err(ApiError::unsupported(
            "tools",
            "Tool calling is not supported by this version; with 'tool_choice': \"none\" the tools \
             are shown to the model only.",
        ));
    }
    if chosen && !matches!(&request.tool_choice, Some(Value::String(choice)) if choice == "auto") {
        return Err(unsupported("tool_choice", "Tool calling"));
    }
    Ok(())
}

fn unsupported(param: &'static str, what: &str) -> ApiError {
    ApiError::unsupported(param, format!("{what} is not supported by this version."))
}
