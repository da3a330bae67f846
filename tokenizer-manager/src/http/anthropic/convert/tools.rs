//! Fields of a Messages request about tools.

use serde_json::{Map, Value, json};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::tools::{self, CallPlan, Choice, Wanted, Words, invalid_choice},
    submission::ToolNames,
};

/// The Messages API's words.
const WORDS: Words = Words {
    tool: ToolNames {
        function: "",
        schema: "input_schema",
    },
    none: "{\"type\": \"none\"}",
    required: "type 'any'",
    several_field: "tool_choice.disable_parallel_tool_use",
};

/// Fields of a tool, with their names in the chat API.
const FIELDS: [(&str, &str); 4] = [
    ("name", "name"),
    ("description", "description"),
    ("input_schema", "parameters"),
    ("strict", "strict"),
];

/// Returns the tools in the chat API's form. Their fields are checked with those of other APIs.
pub(super) fn in_chat_form(tools: Vec<Value>) -> ApiResult<Vec<Value>> {
    let tools = tools.into_iter().enumerate();
    tools.map(|(at, tool)| one(at, tool)).collect()
}

fn one(at: usize, tool: Value) -> ApiResult<Value> {
    let place = format!("tools[{at}]");
    let Value::Object(mut tool) = tool else {
        let message = format!("Invalid value for '{place}': a tool must be an object.");
        return Err(ApiError::invalid(place, message));
    };
    match tool.get("type") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind == "custom" => {}
        Some(kind) => {
            let message = format!(
                "Tools of type {kind} are not supported, only the client's own, with a 'name' and \
                 an 'input_schema'. Leave '{place}' out."
            );
            return Err(ApiError::unsupported(format!("{place}.type"), message));
        }
    }
    let fields = FIELDS.into_iter();
    let function: Map<_, _> = fields
        .filter_map(|(name, chat)| Some((chat.to_owned(), tool.remove(name)?)))
        .collect();
    Ok(json!({"type": "function", "function": function}))
}

/// Checks the tools, and returns the treatment of calls in the answer.
pub(super) fn calls(app: &App, tools: &[Value], choice: Option<&Value>) -> ApiResult<CallPlan> {
    let wanted = Wanted {
        tools,
        choice: self::choice(choice)?,
        several: several(choice)?,
        words: &WORDS,
    };
    tools::calls(app, &wanted)
}

/// Reads `tool_choice`.
fn choice(given: Option<&Value>) -> ApiResult<Choice> {
    let choice = match given {
        None | Some(Value::Null) => return Ok(Choice::Auto),
        Some(choice) => choice,
    };
    match (choice["type"].as_str(), &choice["name"]) {
        (Some("auto"), _) => Ok(Choice::Auto),
        (Some("none"), _) => Ok(Choice::None),
        (Some("any"), _) => Ok(Choice::Required),
        (Some("tool"), Value::String(name)) => Ok(Choice::Named(name.clone())),
        (Some("tool"), _) => Err(invalid_choice("'name' must be a string")),
        _ => Err(invalid_choice(
            "expected an object whose 'type' is \"auto\", \"any\", \"tool\" or \"none\"",
        )),
    }
}

/// Returns false if the request forbids several calls at once.
fn several(choice: Option<&Value>) -> ApiResult<bool> {
    match choice.map(|choice| &choice["disable_parallel_tool_use"]) {
        None | Some(Value::Null) => Ok(true),
        Some(Value::Bool(single)) => Ok(!single),
        Some(_) => Err(invalid_choice(
            "'disable_parallel_tool_use' must be true or false",
        )),
    }
}
