//! Tools of a request, and the calls that it wants, for all APIs of conversations.

mod hold;

use std::{borrow::Cow, sync::Arc};

use lockstep_text::{CallIds, Calls, ToolFormat, ToolSchemas};
use rand::{Rng, distr::Alphanumeric};
use serde_json::Value;

pub(super) use hold::{CallPlan, Held, Holding, hold, rule};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    generation::CallBegin,
    submission::{ToolNames, check_tools},
};

/// Tools of a request, and the calls that it wants from the model.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// Definitions of the tools, in the chat API's form.
    pub tools: &'a [Value],
    /// Choice of calls.
    pub choice: Choice,
    /// True if the model may call several tools at once.
    pub several: bool,
    /// The API's words.
    pub words: &'static Words,
}

/// Choice of the calls that an answer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// The model chooses.
    Auto,
    /// The answer has no calls.
    None,
    /// The answer has at least one call.
    Required,
    /// The answer is one call of the tool with this name.
    Named(String),
    /// The model chooses among the tools with these names.
    Allowed {
        /// The names.
        names: Vec<String>,
        /// True if the answer has at least one call.
        required: bool,
    },
}

/// An API's words for tools, for error messages.
#[derive(Debug)]
pub(super) struct Words {
    /// Names of the fields of a tool.
    pub tool: ToolNames,
    /// Value of `tool_choice` for [`Choice::None`].
    pub none: &'static str,
    /// Value of `tool_choice` for [`Choice::Required`].
    pub required: &'static str,
    /// Field that forbids several calls.
    pub several_field: &'static str,
}

/// Checks the tools of a request, and returns the treatment of calls in its answer.
///
/// # Errors
/// 400 that names the field.
pub(super) fn calls(app: &App, wanted: &Wanted<'_>) -> ApiResult<CallPlan> {
    let tools = wanted.tools;
    check_tools(tools, &app.config.server.limits.request, &wanted.words.tool)?;
    check_choice(wanted)?;
    let calls = match (&wanted.choice, app.text.answers.tools) {
        _ if tools.is_empty() => Calls::Text,
        (Choice::None, None) => Calls::Text,
        (Choice::None, Some(format)) => Calls::Muted(format),
        (_, format) => {
            check_shown(app)?;
            let format = format.ok_or_else(|| no_parser(wanted.words))?;
            return parsed(wanted, format);
        }
    };
    Ok(CallPlan {
        calls,
        holding: None,
    })
}

/// Refuses a choice of tools that are not there.
fn check_choice(wanted: &Wanted<'_>) -> ApiResult<()> {
    let names = match &wanted.choice {
        Choice::Auto | Choice::None => return Ok(()),
        Choice::Required if wanted.tools.is_empty() => {
            return Err(invalid_choice("it needs 'tools' that may be called"));
        }
        Choice::Required => return Ok(()),
        Choice::Named(name) => std::slice::from_ref(name),
        Choice::Allowed { names, .. } => names,
    };
    let is_there = |name: &&String| {
        let mut tools = wanted.tools.iter();
        tools.any(|tool| tool["function"]["name"] == ***name)
    };
    match names.iter().find(|name| !is_there(name)) {
        Some(name) => Err(invalid_choice(&format!("there is no tool called '{name}'"))),
        None => Ok(()),
    }
}

/// Refuses tools that the model would never see, whatever format its calls have.
fn check_shown(app: &App) -> ApiResult<()> {
    let template = app.text.template.as_ref();
    if template.is_none_or(|template| template.shows_tools()) {
        return Ok(());
    }
    Err(ApiError::unsupported(
        "tools",
        "This model's chat template shows no tools to the model; describe them in a message, \
         or serve the model with a template that does.",
    ))
}

fn parsed(wanted: &Wanted<'_>, format: &'static ToolFormat) -> ApiResult<CallPlan> {
    let (only, required) = match &wanted.choice {
        Choice::Auto | Choice::None => (None, false),
        Choice::Required => (None, true),
        Choice::Named(name) => (Some(vec![name.clone()]), true),
        Choice::Allowed { names, required } => (Some(names.clone()), *required),
    };
    Ok(CallPlan {
        calls: Calls::Parsed(format, Arc::new(ToolSchemas::new(wanted.tools))),
        holding: Some(Holding {
            format,
            required,
            several: wanted.several && !matches!(wanted.choice, Choice::Named(_)),
            param: asks(wanted, required || only.is_some()),
            only,
            words: wanted.words,
        }),
    })
}

/// Returns the field that asks for constrained calls.
fn asks(wanted: &Wanted<'_>, chosen: bool) -> Option<Cow<'static, str>> {
    let words = wanted.words;
    if chosen {
        return Some("tool_choice".into());
    }
    if !wanted.several {
        return Some(words.several_field.into());
    }
    let strict = |tool: &Value| tool["function"]["strict"] == true;
    let at = wanted.tools.iter().position(strict)?;
    Some(format!("tools[{at}]{}.strict", words.tool.function).into())
}

fn no_parser(words: &Words) -> ApiError {
    ApiError::unsupported(
        "tools",
        format!(
            "Tool calling is not supported with this model: its chat template asks for calls in no \
             known format. Start the server with `--tool-call-parser` and the name of its format, \
             or send 'tool_choice': {}, with which the tools are shown to the model only.",
            words.none
        ),
    )
}

/// Reads a `tool_choice` that is a word, as OpenAI's APIs have it.
///
/// # Errors
/// 400 for another word.
pub(super) fn worded_choice(choice: &str) -> ApiResult<Choice> {
    match choice {
        "auto" => Ok(Choice::Auto),
        "none" => Ok(Choice::None),
        "required" => Ok(Choice::Required),
        _ => {
            let problem = format!("'{choice}' is not one of auto, none, required");
            Err(invalid_choice(&problem))
        }
    }
}

/// Reads the choice of OpenAI's `allowed_tools`. `name` finds the name of one of its tools.
///
/// # Errors
/// 400 for another form.
pub(super) fn allowed_choice(
    mode: &Value,
    tools: &Value,
    name: impl Fn(&Value) -> Option<&str>,
) -> ApiResult<Choice> {
    let required = match mode.as_str() {
        Some("auto") => false,
        Some("required") => true,
        _ => {
            return Err(invalid_choice(
                "its 'mode' must be \"auto\" or \"required\"",
            ));
        }
    };
    let names = tools.as_array().into_iter().flatten();
    let names: Option<Vec<_>> = names.map(|tool| name(tool).map(str::to_owned)).collect();
    match names.filter(|names| !names.is_empty()) {
        Some(names) => Ok(Choice::Allowed { names, required }),
        None => Err(invalid_choice(
            "its 'tools' must be a list of functions with their names",
        )),
    }
}

/// Returns the error for a `tool_choice` of another form.
pub(super) fn invalid_choice(problem: &str) -> ApiError {
    ApiError::invalid(
        "tool_choice",
        format!("Invalid value for 'tool_choice': {problem}."),
    )
}

/// Returns the form of the calls' ids.
pub(super) fn call_ids(app: &App) -> CallIds {
    let format = app.text.answers.tools;
    format.map_or(CallIds::Long, |format| format.ids)
}

/// Returns the id that the model gave the call, or else a random one, which begins with
/// `prefix` where templates take any id.
pub(super) fn call_id(begin: &CallBegin, ids: CallIds, prefix: &str) -> String {
    if let Some(id) = &begin.id {
        return id.clone();
    }
    let random = |letters| {
        let letters = rand::rng().sample_iter(Alphanumeric).take(letters);
        letters.map(char::from).collect::<String>()
    };
    match ids {
        CallIds::Long => format!("{prefix}_{}", random(24)),
        CallIds::Nine => random(9),
    }
}
