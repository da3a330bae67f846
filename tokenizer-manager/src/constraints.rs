//! Constraints of clients, checked and counted before their requests queue.

use std::sync::Arc;

use lockstep_constraint::{Checked, Checker, ConstraintError, Vocabulary};
use lockstep_text::Tokenizer;
use lockstep_types::{ModelConfig, constraint::Constraint};

use crate::metrics::{ConstraintMetrics, Refusal};

/// The gate of a model's constraints, with its metrics.
#[derive(Debug)]
pub struct Constraints {
    checker: Checker,
    metrics: ConstraintMetrics,
}

impl Constraints {
    /// Makes the gate for a model.
    pub fn new(tokenizer: &Tokenizer, model: &ModelConfig, metrics: ConstraintMetrics) -> Self {
        let (tokenizer, width) = (tokenizer.clone(), model.vocab_size);
        let end_tokens = model.eos_token_ids.clone();
        let read = move || Vocabulary::new(&tokenizer, width, &end_tokens);
        Self {
            checker: Checker::new(read),
            metrics,
        }
    }

    /// Checks that a request's constraint can be followed. [`Self::refused`] counts the request if
    /// it can't.
    pub async fn check(&self, constraint: Arc<Constraint>) -> Checked {
        let kind = constraint.kind;
        let checked = self.checker.check(constraint).await;
        self.metrics.checked(kind, &checked);
        checked
    }

    /// Compiles a constraint that a request gets if it can be followed; with `light`, only if that
    /// takes little work. [`Self::check`] finds it compiled then.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub async fn prepare(
        &self,
        constraint: Constraint,
        light: bool,
    ) -> Result<(), ConstraintError> {
        let kind = constraint.kind;
        let constraint = Arc::new(constraint);
        let checked = match light {
            true => self.checker.check_light(constraint).await,
            false => self.checker.check(constraint).await,
        };
        if checked.compiled.is_some() {
            self.metrics.checked(kind, &checked);
        }
        checked.result
    }

    /// Checks that a part of a request's constraint can be followed. It is in no figure, which are
    /// those of requests.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub async fn check_part(&self, part: Constraint) -> Result<(), ConstraintError> {
        self.checker.check(Arc::new(part)).await.result
    }

    /// Counts a request that is refused for its constraint.
    pub fn refused(&self, reason: impl Into<Refusal>) {
        self.metrics.refused(reason.into());
    }
}
