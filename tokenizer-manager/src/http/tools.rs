//! Tools of a request, and the calls that it wants, for all APIs of conversations.

use std::sync::Arc;

use lockstep_text::{CallIds, Calls, ToolFormat, ToolSchemas};
use rand::{Rng, distr::Alphanumeric};
use serde_json::Value;

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
    /// The answer is a call of the tool with this name.
    Named(String),
}

/// An API's words for tools, for error messages.
#[derive(Debug)]
pub(super) struct Words {
    /// Names of the fields of a tool.
    pub tool: ToolNames,
    /// Value of `tool_choice` for [`Choice::Auto`].
    pub auto: &'static str,
    /// Value of `tool_choice` for [`Choice::None`].
    pub none: &'static str,
    /// Value of `tool_choice` for [`Choice::Required`].
    pub required: &'static str,
    /// Value of `tool_choice` for [`Choice::Named`].
    pub named: &'static str,
    /// Field that forbids several calls.
    pub several_field: &'static str,
    /// That field with the value that forbids them.
    pub single: &'static str,
}

/// Checks the tools of a request, and returns the treatment of calls in its answer.
///
/// # Errors
/// 400 that names the field.
pub(super) fn calls(app: &App, wanted: &Wanted<'_>) -> ApiResult<Calls> {
    let tools = wanted.tools;
    check_tools(tools, &app.config.server.limits.request, &wanted.words.tool)?;
    check_choice(wanted)?;
    match (&wanted.choice, app.text.answers.tools) {
        _ if tools.is_empty() => Ok(Calls::Text),
        (Choice::None, None) => Ok(Calls::Text),
        (Choice::None, Some(format)) => Ok(Calls::Muted(format)),
        (_, format) => {
            let format = format.ok_or_else(|| no_parser(wanted.words))?;
            parsed(app, wanted, format)
        }
    }
}

/// Refuses what needs constrained answers: a call that must come.
fn check_choice(wanted: &Wanted<'_>) -> ApiResult<()> {
    let words = wanted.words;
    let what = match &wanted.choice {
        Choice::Auto | Choice::None => return Ok(()),
        Choice::Required => words.required,
        Choice::Named(name) => {
            let mut tools = wanted.tools.iter();
            if tools.all(|tool| tool["function"]["name"] != **name) {
                return Err(invalid_choice(&format!("there is no tool called '{name}'")));
            }
            words.named
        }
    };
    Err(ApiError::unsupported(
        "tool_choice",
        format!(
            "A 'tool_choice' of {what} is not supported by this version: answers are not \
             constrained, so no call can be promised. Use {}, and ask for the call in a message.",
            words.auto
        ),
    ))
}

fn parsed(app: &App, wanted: &Wanted<'_>, format: &'static ToolFormat) -> ApiResult<Calls> {
    let template = app.text.template.as_ref();
    if !template.is_none_or(|template| template.shows_tools()) {
        return Err(ApiError::unsupported(
            "tools",
            "This model's chat template shows no tools to the model; describe them in a message, \
             or serve the model with a template that does.",
        ));
    }
    if !wanted.several {
        return Err(ApiError::unsupported(
            wanted.words.several_field,
            format!(
                "{} is not supported by this version: answers are not constrained, so a model may \
                 call several tools. Leave it out, and answer every call.",
                wanted.words.single
            ),
        ));
    }
    let schemas = ToolSchemas::new(wanted.tools);
    Ok(Calls::Parsed(format, Arc::new(schemas)))
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
            let problem = format!("'{choice}' is not one of auto, none");
            Err(invalid_choice(&problem))
        }
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
