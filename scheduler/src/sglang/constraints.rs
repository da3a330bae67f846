//! Constraints of a gateway's calls. Calls come to this process without passing a
//! tokenizer-manager, so they are compiled here before they queue.

use std::{path::Path, sync::Arc};

use lockstep_constraint::{Checked, Checker, ConstraintError, Vocabulary};
use lockstep_proto::pb::sglang::grpc::scheduler::{
    GenerateRequest, sampling_params::Constraint as Asked,
};
use lockstep_text::Tokenizer;
use lockstep_traces::{Span, names};
use lockstep_types::{
    ModelConfig,
    constraint::{Constraint, ConstraintKind},
    request::{ErrorKind, RequestError},
};
use tonic::Status;

/// The gate of a model's constraints. It reads the vocabulary with the first constraint, since
/// most gateways send none.
pub struct Constraints(Checker);

impl Constraints {
    /// Makes the gate for a model.
    pub fn new(model: &ModelConfig) -> Self {
        let (folder, width) = (model.path.clone(), model.vocab_size);
        let end_tokens = model.eos_token_ids.clone();
        let read = move || vocabulary(&folder, width, &end_tokens);
        Self(Checker::new(read))
    }

    /// Checks that a call's constraint can be followed.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the field and the keyword of a schema; RESOURCE_EXHAUSTED while too
    /// many others are compiled.
    pub async fn check(
        &self,
        constraint: &Arc<Constraint>,
        span: Option<Span>,
    ) -> Result<(), Status> {
        let checked = self.0.check(constraint.clone()).await;
        if let Some(span) = span {
            note(span, constraint.kind, &checked);
        }
        checked
            .result
            .map_err(|error| refused(constraint.kind, &error))
    }
}

/// Puts a call's grammar in EBNF into Lark. It is done on a thread that may block: a hostile grammar
/// takes megabytes of copies.
///
/// # Errors
/// INVALID_ARGUMENT with the line at fault.
pub async fn translate(wire: &mut GenerateRequest) -> Result<(), Status> {
    let params = wire.sampling_params.as_mut();
    let asked = params.and_then(|params| params.constraint.as_mut());
    let Some(Asked::EbnfGrammar(text)) = asked else {
        return Ok(());
    };
    let grammar = std::mem::take(text);
    let lark = tokio::task::spawn_blocking(move || lockstep_constraint::lark(&grammar));
    let lark = lark.await.unwrap_or(Err(ConstraintError::Slow));
    *text = lark.map_err(|error| refused(ConstraintKind::Lark, &error))?;
    Ok(())
}

fn vocabulary(
    folder: &Path,
    width: usize,
    end_tokens: &[u32],
) -> Result<Vocabulary, ConstraintError> {
    let tokenizer = Tokenizer::load(folder);
    let tokenizer = tokenizer.map_err(|error| ConstraintError::Vocabulary(error.to_string()))?;
    Vocabulary::new(&tokenizer, width, end_tokens)
}

fn note(mut span: Span, kind: ConstraintKind, checked: &Checked) {
    span.set(names::CONSTRAINT_KIND, label(kind));
    match &checked.result {
        Ok(()) => span.set(names::CONSTRAINT_CACHED, checked.compiled.is_none()),
        Err(error) => span.fail(error.to_string()),
    }
}

fn refused(kind: ConstraintKind, error: &ConstraintError) -> Status {
    let field = format!("sampling_params.{}", label(kind));
    match error {
        ConstraintError::Busy => {
            let error = RequestError::new(ErrorKind::Overloaded, error.to_string());
            lockstep_proto::status(error)
        }
        error => Status::invalid_argument(format!("{field}: {error}")),
    }
}

/// Returns the name that gateways have for a language.
fn label(kind: ConstraintKind) -> &'static str {
    match kind {
        ConstraintKind::JsonSchema => "json_schema",
        ConstraintKind::Regex => "regex",
        ConstraintKind::Lark => "ebnf_grammar",
        ConstraintKind::Choice => "choice",
        ConstraintKind::StructuralTag => "structural_tag",
        ConstraintKind::Anything => "budget",
    }
}
