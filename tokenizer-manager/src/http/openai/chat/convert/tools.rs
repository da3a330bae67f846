//! Fields of a chat request about tools.

use lockstep_text::Calls;
use serde_json::Value;

use super::super::types::ChatRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::tools::{self, Choice, Wanted, Words, invalid_choice},
    submission::ToolNames,
};

/// The chat API's words.
const WORDS: Words = Words {
    tool: ToolNames::CHAT,
    auto: "\"auto\"",
    none: "\"none\"",
    required: "\"required\"",
    named: "a function",
    several_field: "parallel_tool_calls",
    single: "'parallel_tool_calls': false",
};

/// Checks the tools of a request, and returns the treatment of calls in its answer.
pub(super) fn calls(app: &App, request: &ChatRequest) -> ApiResult<Calls> {
    let wanted = Wanted {
        tools: request.tools.as_deref().unwrap_or_default(),
        choice: choice(request.tool_choice.as_ref())?,
        several: request.parallel_tool_calls != Some(false),
        words: &WORDS,
    };
    tools::calls(app, &wanted)
}

/// Reads `tool_choice`.
fn choice(given: Option<&Value>) -> ApiResult<Choice> {
    match given {
        None | Some(Value::Null) => Ok(Choice::Auto),
        Some(Value::String(choice)) => tools::worded_choice(choice),
        Some(Value::Object(fields)) => {
            let named = fields
                .get("function")
                .and_then(|function| function.get("name"));
            match (fields.get("type").and_then(Value::as_str), named) {
                (Some("function"), Some(Value::String(name))) => Ok(Choice::Named(name.clone())),
                (Some("allowed_tools"), _) => Err(ApiError::unsupported(
                    "tool_choice",
                    "A 'tool_choice' of type 'allowed_tools' is not supported by this version; \
                     send only the allowed tools in 'tools'.",
                )),
                _ => Err(invalid_choice(FORMS)),
            }
        }
        Some(_) => Err(invalid_choice(FORMS)),
    }
}

const FORMS: &str = "expected \"auto\" or \"none\"";
