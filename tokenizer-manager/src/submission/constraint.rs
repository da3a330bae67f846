//! Constraints of a request's outputs.

use std::sync::Arc;

use lockstep_constraint::ConstraintError;
use lockstep_types::{
    constraint::Constraint,
    request::{ErrorKind, RequestError},
};

use super::{ConstraintSpec, GenerateSpec};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Compiles a request's constraint.
///
/// # Errors
/// 400 that names the field, and the keyword of a schema, if it can't be followed.
pub(super) async fn check(app: &App, spec: &GenerateSpec) -> ApiResult<Option<Arc<Constraint>>> {
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
    let checked = app.constraints.check(constraint.clone()).await;
    checked.map_err(|error| refused(asked, &error))?;
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
