//! Fields of a chat request about tools.

use serde_json::Value;

use super::super::types::ChatRequest;
use crate::{
    app::App,
    error::ApiResult,
    http::tools::{self, CallPlan, Choice, Wanted, Words, allowed_choice, invalid_choice},
    submission::ToolNames,
};

/// The chat API's words.
const WORDS: Words = Words {
    tool: ToolNames::CHAT,
    none: "\"none\"",
    required: "\"required\"",
    several_field: "parallel_tool_calls",
};

/// Checks the tools of a request, and returns the treatment of calls in its answer.
pub(super) fn calls(app: &App, request: &ChatRequest) -> ApiResult<CallPlan> {
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
                (Some("allowed_tools"), _) => {
                    let allowed = fields.get("allowed_tools").unwrap_or(&Value::Null);
                    allowed_choice(&allowed["mode"], &allowed["tools"], |tool| {
                        tool["function"]["name"].as_str()
                    })
                }
                _ => Err(invalid_choice(FORMS)),
            }
        }
        Some(_) => Err(invalid_choice(FORMS)),
    }
}

const FORMS: &str = "expected \"auto\", \"none\", \"required\", a function or 'allowed_tools'";
