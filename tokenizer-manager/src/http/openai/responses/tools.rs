//! Fields of a Responses request about tools.

use serde_json::{Map, Value, json};

use super::types::ResponsesRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::tools::{self, CallPlan, Choice, Wanted, Words, allowed_choice, invalid_choice},
    submission::ToolNames,
};

/// The Responses API's words.
const WORDS: Words = Words {
    tool: ToolNames {
        function: "",
        schema: "parameters",
    },
    none: "\"none\"",
    required: "\"required\"",
    several_field: "parallel_tool_calls",
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
pub(super) fn calls(app: &App, tools: &[Value], request: &ResponsesRequest) -> ApiResult<CallPlan> {
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
    const FORMS: &str = "expected \"auto\", \"none\", \"required\", a function or 'allowed_tools'";
    match given {
        None | Some(Value::Null) => Ok(Choice::Auto),
        Some(Value::String(choice)) => tools::worded_choice(choice),
        Some(Value::Object(fields)) => {
            let kind = fields.get("type").and_then(Value::as_str);
            match (kind, fields.get("name")) {
                (Some("function"), Some(Value::String(name))) => Ok(Choice::Named(name.clone())),
                (Some("allowed_tools"), _) => {
                    let field = |name: &str| fields.get(name).unwrap_or(&Value::Null);
                    allowed_choice(field("mode"), field("tools"), |tool| tool["name"].as_str())
                }
                (Some(kind), _) if kind != "function" => Err(ApiError::unsupported(
                    "tool_choice",
                    format!(
                        "A 'tool_choice' of type '{kind}' is not supported by this version; name a \
                         function."
                    ),
                )),
                _ => Err(invalid_choice(FORMS)),
            }
        }
        Some(_) => Err(invalid_choice(FORMS)),
    }
}
