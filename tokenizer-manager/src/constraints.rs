//! Constraints of clients, checked and counted before their requests queue.

use std::sync::Arc;

use lockstep_constraint::{Checked, Checker, Vocabulary};
use lockstep_text::Tokenizer;
use lockstep_types::{ModelConfig, constraint::Constraint};

use crate::metrics::ConstraintMetrics;

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

    /// Checks that a constraint can be followed.
    pub async fn check(&self, constraint: Arc<Constraint>) -> Checked {
        let kind = constraint.kind;
        let checked = self.checker.check(constraint).await;
        self.metrics.count(kind, &checked);
        checked
    }
}
