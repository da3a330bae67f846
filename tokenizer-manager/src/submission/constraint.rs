//! Constraints of a request's outputs.

use std::{sync::Arc, time::Duration};

use lockstep_constraint::ConstraintError;
use lockstep_traces::names;
use lockstep_types::{
    constraint::{Constraint, ConstraintKind},
    request::{ErrorKind, RequestError},
};

use super::{ConstraintSpec, GenerateSpec};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    metrics::constraint_label,
    request_trace::InferenceTrace,
};

/// Longest time to find the schema at fault inside a constraint.
const LONGEST: Duration = Duration::from_secs(2);

/// Compiles a request's constraint.
///
/// # Errors
/// 400 that names the field, and the keyword of a schema, if it can't be followed.
pub(super) async fn check(
    app: &App,
    spec: &GenerateSpec,
    trace: Option<&InferenceTrace>,
) -> ApiResult<Option<Arc<Constraint>>> {
    let Some(asked) = &spec.constraint else {
        return Ok(None);
    };
    if spec.sampling.ignore_eos && asked.kind != ConstraintKind::Anything {
        return Err(ApiError::invalid(
            spec.fields.name("ignore_eos"),
            format!(
                "'ignore_eos' can't be used with '{}': a constrained output ends where the \
                 constraint is fulfilled.",
                asked.param
            ),
        ));
    }
    let constraint = Arc::new(Constraint {
        kind: asked.kind,
        text: asked.text.as_str().into(),
        whitespace: asked.whitespace,
        after: asked.after.clone(),
    });
    let mut span = trace.map(|trace| trace.child("compile"));
    let checked = app.constraints.check(constraint.clone()).await;
    if let Some(span) = &mut span {
        span.set(names::CONSTRAINT_KIND, constraint_label(asked.kind));
        match &checked.result {
            Ok(()) => span.set(names::CONSTRAINT_CACHED, checked.compiled.is_none()),
            Err(error) => span.fail(error.to_string()),
        }
    }
    drop(span);
    match checked.result {
        Ok(()) => Ok(Some(constraint)),
        Err(error) => Err(refuse(app, asked, &error).await),
    }
}

/// Counts a request that is refused for its constraint, and returns the error. It is that of the
/// first schema inside the constraint that can't be followed by itself, if there is one.
async fn refuse(app: &App, asked: &ConstraintSpec, error: &ConstraintError) -> ApiError {
    let part = match error {
        ConstraintError::Refused { .. } => {
            let part = tokio::time::timeout(LONGEST, wrong_part(app, asked)).await;
            part.ok().flatten()
        }
        _ => None,
    };
    let (param, kind, error) = match &part {
        Some((param, error)) => (*param, ConstraintKind::JsonSchema, error),
        None => (&*asked.param, asked.kind, error),
    };
    app.constraints.refused(error);
    refused(param, kind, error)
}

/// Returns the first schema inside a constraint that can't be followed by itself, or `None` if the
/// server has no time to find it.
async fn wrong_part<'a>(
    app: &App,
    asked: &'a ConstraintSpec,
) -> Option<(&'a str, ConstraintError)> {
    for part in &asked.parts {
        let schema = Constraint {
            whitespace: asked.whitespace,
            ..Constraint::new(ConstraintKind::JsonSchema, part.schema.as_str())
        };
        match app.constraints.check_part(schema).await {
            Ok(()) => {}
            Err(ConstraintError::Busy) => return None,
            Err(error) => return Some((&part.param, error)),
        }
    }
    None
}

fn refused(param: &str, kind: ConstraintKind, error: &ConstraintError) -> ApiError {
    let name = kind.name();
    match error {
        ConstraintError::Busy => RequestError::new(ErrorKind::Overloaded, error.to_string()).into(),
        ConstraintError::NoEnd | ConstraintError::Vocabulary(_) => {
            ApiError::unsupported(param, error.to_string())
        }
        error => ApiError::invalid(param, format!("Invalid {name} for '{param}': {error}.")),
    }
}
