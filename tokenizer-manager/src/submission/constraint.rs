//! Constraints of a request's outputs.

use std::sync::Arc;

use lockstep_constraint::ConstraintError;
use lockstep_traces::names;
use lockstep_types::{
    constraint::Constraint,
    request::{ErrorKind, RequestError},
};

use super::{ConstraintSpec, GenerateSpec};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    metrics::constraint_label,
    request_trace::InferenceTrace,
};

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
    if spec.sampling.ignore_eos {
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
    checked.result.map_err(|error| refused(asked, &error))?;
    Ok(Some(constraint))
}

fn refused(asked: &ConstraintSpec, error: &ConstraintError) -> ApiError {
    let (param, name) = (&asked.param, asked.kind.name());
    let param: &str = param;
    match error {
        ConstraintError::Busy => RequestError::new(ErrorKind::Overloaded, error.to_string()).into(),
        ConstraintError::NoEnd | ConstraintError::Vocabulary(_) => {
            ApiError::unsupported(param, error.to_string())
        }
        error => ApiError::invalid(param, format!("Invalid {name} for '{param}': {error}.")),
    }
}
