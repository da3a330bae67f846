//! Constraints of an answer beside its other parts.

use lockstep_text::{Calls, ReasoningFormat, Turn, channel_answer};
use lockstep_types::constraint::{ConstraintKind, Reasoning};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::tools::{Held, rule},
    submission::{ConstraintPart, ConstraintSpec, GenerateSpec, ThinkingBudget},
};

/// Refuses reasoning that stays in the text of an answer whose calls are constrained: what looks
/// like a call there would be taken for one. `turn` tells how the answer begins.
pub(super) fn check_apart(turn: Option<Turn>) -> ApiResult<()> {
    match turn {
        None | Some(Turn::Answer) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "separate_reasoning",
            "'separate_reasoning': false can't be used where calls are constrained and the model \
             may reason first; leave it out.",
        )),
    }
}

/// Lets the constraint begin behind the reasoning, if the answer has some, and limits the tokens
/// of the reasoning if the request asks for that. `held` says whether the constraint is a grammar of
/// `calls`, of whole outputs. `turn` tells how the answer begins.
///
/// # Errors
/// 400 for a limit where reasoning can't be told from the answer, and for a constraint that can't
/// stand among the model's channels.
pub(super) fn after_reasoning(
    app: &App,
    spec: &mut GenerateSpec,
    (held, calls): (Held, &Calls),
    turn: impl FnOnce(&ReasoningFormat) -> Turn,
) -> ApiResult<()> {
    let budget = spec.thinking_budget.take();
    let Some(format) = app.text.answers.reasoning else {
        return budget.map_or(Ok(()), |ThinkingBudget { param, .. }| {
            Err(ApiError::unsupported(
                param,
                format!(
                    "'{param}' can't be obeyed here: no marks of reasoning are known for this \
                     model; leave it out, or start the server with `--reasoning-parser`."
                ),
            ))
        });
    };
    if spec.constraint.is_none() && budget.is_none() {
        return Ok(());
    }
    let opening = format.opening();
    let open = match turn(format) {
        Turn::Answer => return Ok(()),
        Turn::Reasoning => None,
        Turn::Open => Some(opening.as_str()),
    };
    if let Some(constraint) = &mut spec.constraint
        && format.channels
        && held == Held::No
    {
        in_channel(app, constraint)?;
    }
    let limit = budget.as_ref();
    let limit = limit.map(|budget| u32::try_from(budget.tokens).unwrap_or(u32::MAX));
    let param = budget.map_or("", |budget| budget.param);
    let anything = || ConstraintSpec::new(param, ConstraintKind::Anything, "");
    let constraint = spec.constraint.get_or_insert_with(anything);
    constraint.after = Some(Reasoning {
        limit,
        again: format.channels,
        breaks: match calls {
            Calls::Parsed(calls, _) if held != Held::Asked && !format.channels => {
                calls.openings().iter().map(|mark| (*mark).into()).collect()
            }
            _ => Vec::new(),
        },
        ..Reasoning::new(open, format.marks[1])
    });
    Ok(())
}

/// Turns a constraint of an answer into the grammar of an output whose last message it is.
fn in_channel(app: &App, constraint: &mut ConstraintSpec) -> ApiResult<()> {
    let instead = "use a JSON schema, an expression or a grammar";
    let rule = rule(app, constraint, "with this model's channels", instead)?;
    let grammar = channel_answer(&app.text.tokenizer, &rule).map_err(|error| {
        app.constraints.refused(&error);
        let (name, param) = (constraint.kind.name(), &constraint.param);
        ApiError::invalid(
            param.clone(),
            format!("Invalid {name} for '{param}': {error}."),
        )
    })?;
    if constraint.kind == ConstraintKind::JsonSchema {
        let schema = std::mem::take(&mut constraint.text);
        let param = constraint.param.to_string();
        constraint.parts.push(ConstraintPart { param, schema });
    }
    (constraint.kind, constraint.text) = (ConstraintKind::Lark, grammar);
    Ok(())
}
