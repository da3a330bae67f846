//! Fields of a Responses request about tools.

use lockstep_text::Calls;
use serde_json::{Map, Value, json};

use super::types::ResponsesRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::tools::{self, Choice, Wanted, Words, invalid_choice},
    submission::ToolNames,
};

/// The Responses API's words.
const WORDS: Words = Words {
    tool: ToolNames {
        function: "",
        schema: "parameters",
    },
    auto: "\"auto\"",
    none: "\"none\"",
    required: "\"required\"",
    named: "a function",
    several_field: "parallel_tool_calls",
    single: "'parallel_tool_calls': false",
};

/// Fields of a function.
const FIELDS: [&str; 4] = ["name", "description", "parameters", "strict"];

/// Returns the tools in the chat API's form. Their fields are checked with those of other APIs.
pub(super) fn in_chat_form(tools: &[Value]) -> ApiResult<Vec<Value>> {
    let tools = tools.iter().enumerate();
    tools.map(|(at, tool)| one(at, tool)).collect()
}

fn one(at: usize, tool: &Value) -> ApiResult<Value> {
    let place = format!("tools[{at}]");
    let Value::Object(tool) = tool else {
        let message = format!("Invalid value for '{place}': a tool must be an object.");
        return Err(ApiError::invalid(place, message));
    };
    match tool.get("type") {
        Some(Value::String(kind)) if kind == "function" => {}
        Some(Value::String(kind)) => {
            let message = format!(
                "Tools of type '{kind}' are not supported, only functions, which the client runs. \
                 Leave '{place}' out."
            );
            return Err(ApiError::unsupported(format!("{place}.type"), message));
        }
        _ => {
            let message = format!("Invalid value for '{place}.type': it must be a string.");
            return Err(ApiError::invalid(format!("{place}.type"), message));
        }
    }
    let fields = FIELDS.into_iter();
    let function: Map<_, _> = fields
        .filter_map(|name| Some((name.to_owned(), tool.get(name)?.clone())))
        .collect();
    Ok(json!({"type": "function", "function": function}))
}

/// Returns a tool in this API's form.
pub(super) fn in_own_form(tool: &Value) -> Value {
    let mut own = json!({"type": "function"});
    for (name, value) in tool["function"].as_object().into_iter().flatten() {
        own[name] = value.clone();
    }
    own
}

/// Checks the tools, and returns the treatment of calls in the answer.
pub(super) fn calls(app: &App, tools: &[Value], request: &ResponsesRequest) -> ApiResult<Calls> {
    let wanted = Wanted {
        tools,
        choice: choice(request.tool_choice.as_ref())?,
        several: request.parallel_tool_calls != Some(false),
        words: &WORDS,
    };
    tools::calls(app, &wanted)
}

/// Reads `tool_choice`.
fn choice(given: Option<&Value>) -> ApiResult<Choice> {
    const FORMS: &str = "expected \"auto\" or \"none\"";
    match given {
        None | Some(Value::Null) => Ok(Choice::Auto),
        Some(Value::String(choice)) => tools::worded_choice(choice),
        Some(Value::Object(fields)) => {
            let kind = fields.get("type").and_then(Value::as_str);
            match (kind, fields.get("name")) {
                (Some("function"), Some(Value::String(name))) => Ok(Choice::Named(name.clone())),
                (Some(kind), _) if kind != "function" => Err(ApiError::unsupported(
                    "tool_choice",
                    format!(
                        "A 'tool_choice' of type '{kind}' is not supported by this version; send \
                         only the allowed tools in 'tools'."
                    ),
                )),
                _ => Err(invalid_choice(FORMS)),
            }
        }
        Some(_) => Err(invalid_choice(FORMS)),
    }
}
