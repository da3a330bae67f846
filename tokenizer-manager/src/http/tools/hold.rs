//! Answers that are held to a grammar of their calls.

use std::{borrow::Cow, sync::Arc};

use lockstep_constraint::{ConstraintError, check_schema, expression};
use lockstep_text::{
    Beside, CallableTool, Calls, GRAMMAR_BYTES, GrammarError, ToolFormat, ToolSchemas, WantedCalls,
};
use lockstep_types::{
    ToolStrictLevel,
    constraint::{CONSTRAINT_BYTES, Constraint, ConstraintKind},
    request::{ErrorKind, RequestError},
};
use serde_json::Value;

use super::Words;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    metrics::Refusal,
    submission::{ConstraintPart, ConstraintSpec, GenerateSpec},
};

const _: () = assert!(
    GRAMMAR_BYTES == CONSTRAINT_BYTES,
    "a grammar is a constraint"
);

/// Treatment of calls in an answer.
#[derive(Debug)]
pub(in crate::http) struct CallPlan {
    /// Calls as the parser sees them, if nothing else is asked for.
    pub calls: Calls,
    /// Calls that a grammar could hold the answer to; `None` = it has none.
    pub holding: Option<Holding>,
}

/// Grammar of calls to which an answer is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Held {
    /// None.
    No,
    /// One that the request asks for.
    Asked,
    /// One of the server's own accord. A call inside the reasoning ends it.
    Unasked,
}

/// Calls that an answer may have.
#[derive(Debug)]
pub(in crate::http) struct Holding {
    /// Format of the calls.
    pub format: &'static ToolFormat,
    /// Names of the tools that may be called; `None` = all.
    pub only: Option<Vec<String>>,
    /// True if the answer is at least one call.
    pub required: bool,
    /// True if the answer may have several.
    pub several: bool,
    /// Field that asks for a grammar; `None` = only a constraint of the answer does, or the
    /// server.
    pub param: Option<Cow<'static, str>>,
    /// The API's words.
    pub words: &'static Words,
}

/// Constrains an answer to its calls where the request or the server asks for that, beside a
/// constraint that it may have already. `apart` says that reasoning is told from the text. Returns
/// the treatment of calls.
///
/// # Errors
/// 400 that names the field, or the schema of the tool, that can't be obeyed.
pub(in crate::http) async fn hold(
    app: &App,
    spec: &mut GenerateSpec,
    tools: &[Value],
    plan: CallPlan,
    apart: bool,
) -> ApiResult<(Calls, Held)> {
    let Some(holding) = plan.holding else {
        return Ok((plan.calls, Held::No));
    };
    let answer = spec.constraint.take().filter(|_| !holding.required);
    let param = holding.param.clone();
    match param.or_else(|| Some(answer.as_ref()?.param.clone())) {
        Some(param) => {
            let calls = hold_asked(app, spec, tools, &holding, (param, answer))?;
            Ok((calls, Held::Asked))
        }
        None if !apart && app.text.answers.reasoning.is_some() => Ok((plan.calls, Held::No)),
        None => {
            let held = hold_unasked(app, spec, tools, &holding).await?;
            Ok((plan.calls, held))
        }
    }
}

/// Constrains the calls that the model chooses to make, as the server's level says. The request
/// asks for nothing, so an answer that no grammar suits stays free, and so is one with a call
/// inside its reasoning. The parser therefore reads calls as in any free answer.
async fn hold_unasked(
    app: &App,
    spec: &mut GenerateSpec,
    tools: &[Value],
    holding: &Holding,
) -> ApiResult<Held> {
    let levels: &[_] = match app.config.server.answers.tool_strict_level {
        ToolStrictLevel::Off => &[],
        ToolStrictLevel::Function => &[false],
        ToolStrictLevel::Parameter => &[true, false],
    };
    let levels = levels.iter().filter(|_| !spec.sampling.ignore_eos);
    for schemas in levels {
        let callable = callable(app, tools, holding, *schemas)?;
        let wanted: Vec<_> = callable.iter().map(|(_, tool)| *tool).collect();
        let wanted = WantedCalls {
            tools: &wanted,
            beside: Beside::Text,
            several: holding.several,
        };
        let Ok(grammar) = holding.format.grammar(&app.text.tokenizer, &wanted) else {
            continue;
        };
        let part = Constraint::new(ConstraintKind::Lark, grammar.as_str());
        // A grammar with schemas that takes much work does so each time, and the names are left.
        match app.constraints.prepare(part, *schemas).await {
            Ok(()) => {}
            // What else the machine does must not show in a text.
            Err(ConstraintError::Busy | ConstraintError::Slow) => {
                let message = "the server had no time to compile the grammar of the tools' calls; \
                               try again";
                return Err(RequestError::new(ErrorKind::Overloaded, message).into());
            }
            Err(_) => continue,
        }
        spec.constraint = Some(ConstraintSpec::new("tools", ConstraintKind::Lark, grammar));
        return Ok(Held::Unasked);
    }
    Ok(Held::No)
}

/// Constrains an answer to its calls, beside the constraint `answer`. `param` asks for that.
fn hold_asked(
    app: &App,
    spec: &mut GenerateSpec,
    tools: &[Value],
    holding: &Holding,
    (param, answer): (Cow<'static, str>, Option<ConstraintSpec>),
) -> ApiResult<Calls> {
    let whitespace = answer.as_ref().map(|answer| answer.whitespace);
    let rule = answer
        .as_ref()
        .map(|answer| rule(app, answer, "beside tools that may be called", INSTEAD))
        .transpose()?;
    let level = app.config.server.answers.tool_strict_level;
    let schemas = holding.required || level == ToolStrictLevel::Parameter;
    let callable = callable(app, tools, holding, schemas)?;
    let schemas = ToolSchemas::new(
        &callable
            .iter()
            .map(|(at, _)| tools[*at].clone())
            .collect::<Vec<_>>(),
    );
    let wanted: Vec<_> = callable.iter().map(|(_, tool)| *tool).collect();
    let wanted = WantedCalls {
        tools: &wanted,
        beside: match &rule {
            Some(rule) => Beside::Answer(rule),
            None if holding.required => Beside::Nothing,
            None => Beside::Text,
        },
        several: holding.several,
    };
    let grammar = holding.format.grammar(&app.text.tokenizer, &wanted);
    let grammar = grammar.map_err(|error| {
        app.constraints.refused(&error);
        refused(&error, &param, &callable, holding.words)
    })?;
    let parts = callable.iter().filter_map(|(at, tool)| {
        Some(ConstraintPart {
            param: schema_of(*at, holding.words),
            schema: tool.schema?.to_string(),
        })
    });
    let schema = answer.filter(|answer| answer.kind == ConstraintKind::JsonSchema);
    let parts = parts.chain(schema.map(|answer| ConstraintPart {
        param: answer.param.into_owned(),
        schema: answer.text,
    }));
    spec.constraint = Some(ConstraintSpec {
        parts: parts.collect(),
        whitespace: whitespace.unwrap_or_default(),
        ..ConstraintSpec::new(param, ConstraintKind::Lark, grammar)
    });
    let schemas = match wanted.beside {
        Beside::Nothing | Beside::Text => schemas.held(),
        Beside::Answer(_) => schemas.alone(),
    };
    Ok(Calls::Parsed(holding.format, Arc::new(schemas)))
}

/// Advice about a structural tag, which can't be a part of a grammar.
const INSTEAD: &str = "send 'tool_choice' to forbid or to require calls, or use a JSON schema";

/// Returns the expression of a constrained answer. `place` says where it can't stand, and
/// `instead` what to do.
///
/// # Errors
/// 400 that names the field.
pub(in crate::http) fn rule(
    app: &App,
    answer: &ConstraintSpec,
    place: &str,
    instead: &str,
) -> ApiResult<String> {
    if answer.kind == ConstraintKind::StructuralTag {
        app.constraints.refused(Refusal::Text);
        return Err(ApiError::unsupported(
            answer.param.clone(),
            format!(
                "'{}' {place} is not supported by this version: {instead}.",
                answer.param
            ),
        ));
    }
    expression(answer.kind, &answer.text).map_err(|error| {
        app.constraints.refused(&error);
        let (name, param) = (answer.kind.name(), &answer.param);
        ApiError::invalid(
            param.clone(),
            format!("Invalid {name} for '{param}': {error}."),
        )
    })
}

/// Returns the tools that may be called, with their places. The schemas of strict tools are
/// obeyed; with `schemas` those of others too, where they can be.
fn callable<'a>(
    app: &App,
    tools: &'a [Value],
    holding: &Holding,
    schemas: bool,
) -> ApiResult<Vec<(usize, CallableTool<'a>)>> {
    let mut callable = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let only = holding.only.as_ref();
        if only.is_some_and(|only| !only.iter().any(|one| one == name)) {
            continue;
        }
        let strict = function["strict"] == true;
        let known = Some(&function["parameters"]).filter(|schema| schema.is_object());
        let mut schema = known;
        if let Some(given) = schema.filter(|_| strict || schemas) {
            match check_schema(&given.to_string()) {
                Ok(()) => {}
                Err(_) if !strict => schema = None,
                Err(error) => {
                    app.constraints.refused(&error);
                    let param = schema_of(at, holding.words);
                    let message = format!("Invalid JSON schema for '{param}': {error}.");
                    return Err(ApiError::invalid(param, message));
                }
            }
        } else {
            schema = None;
        }
        callable.push((
            at,
            CallableTool {
                name,
                schema,
                known,
                strict,
            },
        ));
    }
    Ok(callable)
}

/// Returns the name of the field with a tool's schema.
fn schema_of(at: usize, words: &Words) -> String {
    format!("tools[{at}]{}.{}", words.tool.function, words.tool.schema)
}

fn refused(
    error: &GrammarError,
    param: &str,
    tools: &[(usize, CallableTool<'_>)],
    words: &Words,
) -> ApiError {
    match error {
        GrammarError::NoOpening(_) => ApiError::unsupported(
            param,
            format!(
                "'{param}' can't be obeyed here: {error}. Leave it out, or send a 'tool_choice' \
                 of {}.",
                words.required
            ),
        ),
        GrammarError::TooLong => ApiError::invalid("tools", format!("Invalid 'tools': {error}.")),
        GrammarError::Arguments { tool, .. } => {
            let at = tools.get(*tool).map_or(0, |(at, _)| *at);
            let param = schema_of(at, words);
            let message = format!("Invalid JSON schema for '{param}': {error}.");
            ApiError::invalid(param, message)
        }
    }
}
