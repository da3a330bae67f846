//! Fields of a chat request about tools.

use std::sync::Arc;

use lockstep_text::{Calls, ToolFormat, ToolSchemas};
use serde_json::Value;

use super::super::types::ChatRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    submission::check_tools,
};

/// Choices of a request that calls are or are not told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    None,
}

/// Checks the tools of a request, and returns the treatment of calls in its answer.
pub(super) fn calls(app: &App, request: &ChatRequest) -> ApiResult<Calls> {
    let tools = request.tools.as_deref().unwrap_or_default();
    check_tools(tools, &app.config.server.limits.request)?;
    let choice = choice(request.tool_choice.as_ref(), tools)?;
    match (choice, app.text.answers.tools) {
        _ if tools.is_empty() => Ok(Calls::Text),
        (Choice::None, None) => Ok(Calls::Text),
        (Choice::None, Some(format)) => Ok(Calls::Muted(format)),
        (Choice::Auto, format) => {
            let format = format.ok_or_else(no_parser)?;
            parsed(app, request, format, tools)
        }
    }
}

fn parsed(
    app: &App,
    request: &ChatRequest,
    format: &'static ToolFormat,
    tools: &[Value],
) -> ApiResult<Calls> {
    let template = app.text.template.as_ref();
    if !template.is_none_or(|template| template.shows_tools()) {
        return Err(ApiError::unsupported(
            "tools",
            "This model's chat template shows no tools to the model; describe them in a message, \
             or serve the model with a template that does.",
        ));
    }
    if request.parallel_tool_calls == Some(false) {
        return Err(ApiError::unsupported(
            "parallel_tool_calls",
            "'parallel_tool_calls': false is not supported by this version: answers are not \
             constrained, so a model may call several tools. Leave it out, and answer every call.",
        ));
    }
    Ok(Calls::Parsed(format, Arc::new(ToolSchemas::new(tools))))
}

fn no_parser() -> ApiError {
    ApiError::unsupported(
        "tools",
        "Tool calling is not supported with this model: its chat template asks for calls in no \
         known format. Start the server with `--tool-call-parser` and the name of its format, or \
         send 'tool_choice': \"none\", with which the tools are shown to the model only.",
    )
}

/// Reads `tool_choice`. What would need constrained answers is refused.
fn choice(given: Option<&Value>, tools: &[Value]) -> ApiResult<Choice> {
    match given {
        None | Some(Value::Null) => Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Err(unsupported("\"required\"")),
            _ => Err(invalid(&format!("'{choice}' is not one of auto, none"))),
        },
        Some(Value::Object(fields)) => {
            let named = fields
                .get("function")
                .and_then(|function| function.get("name"));
            match (fields.get("type").and_then(Value::as_str), named) {
                (Some("function"), Some(Value::String(name))) => {
                    if tools.iter().all(|tool| tool["function"]["name"] != **name) {
                        return Err(invalid(&format!("there is no tool called '{name}'")));
                    }
                    Err(unsupported("a function"))
                }
                (Some("allowed_tools"), _) => Err(ApiError::unsupported(
                    "tool_choice",
                    "A 'tool_choice' of type 'allowed_tools' is not supported by this version; \
                     send only the allowed tools in 'tools'.",
                )),
                _ => Err(invalid(FORMS)),
            }
        }
        Some(_) => Err(invalid(FORMS)),
    }
}

const FORMS: &str = "expected \"auto\" or \"none\"";

fn unsupported(what: &str) -> ApiError {
    ApiError::unsupported(
        "tool_choice",
        format!(
            "A 'tool_choice' of {what} is not supported by this version: answers are not \
             constrained, so no call can be promised. Use \"auto\", and ask for the call in a \
             message."
        ),
    )
}

fn invalid(problem: &str) -> ApiError {
    ApiError::invalid(
        "tool_choice",
        format!("Invalid value for 'tool_choice': {problem}."),
    )
}
