//! Metrics of the constraints that this process compiles.

use lockstep_constraint::{Checked, ConstraintError};
use lockstep_text::GrammarError;
use lockstep_types::constraint::ConstraintKind;
use metrics::{Counter, Histogram, Key, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::METADATA;

const COMPILES: &str = "lockstep_front_constraint_compile_seconds";
const HITS: &str = "lockstep_front_constraint_cache_hits_total";
const REFUSED: &str = "lockstep_front_constraints_refused_total";

/// Reason why a request is refused for its constraint. Keywords are no labels, since clients may
/// write any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A keyword of a schema.
    Keyword,
    /// Anything else in the constraint.
    Text,
    /// The time that the constraint takes.
    Slow,
    /// Too many other constraints.
    Busy,
    /// The model, whose outputs can't be constrained so.
    Model,
}

impl From<&ConstraintError> for Refusal {
    fn from(error: &ConstraintError) -> Self {
        match error {
            ConstraintError::Refused { .. } if error.keyword().is_some() => Self::Keyword,
            ConstraintError::Refused { .. } => Self::Text,
            ConstraintError::Slow | ConstraintError::Heavy => Self::Slow,
            ConstraintError::Busy => Self::Busy,
            ConstraintError::NoEnd | ConstraintError::Vocabulary(_) => Self::Model,
        }
    }
}

impl From<&GrammarError> for Refusal {
    fn from(error: &GrammarError) -> Self {
        match error {
            GrammarError::NoOpening(_) => Self::Model,
            GrammarError::Arguments {
                keyword: Some(_), ..
            } => Self::Keyword,
            GrammarError::TooLong | GrammarError::Arguments { .. } => Self::Text,
        }
    }
}

/// Handles by which constraints are counted.
#[derive(Debug, Clone)]
pub struct ConstraintMetrics {
    json_schemas: Histogram,
    regexes: Histogram,
    grammars: Histogram,
    choices: Histogram,
    structural_tags: Histogram,
    budgets: Histogram,
    hits: Counter,
    keyword: Counter,
    text: Counter,
    slow: Counter,
    busy: Counter,
    model: Counter,
}

impl ConstraintMetrics {
    pub(super) fn new(recorder: &PrometheusRecorder) -> Self {
        recorder.describe_histogram(
            COMPILES.into(),
            None,
            "Compiling of a constraint, refused ones included, by its language.".into(),
        );
        recorder.describe_counter(
            HITS.into(),
            None,
            "Constraints of requests that had been compiled before.".into(),
        );
        recorder.describe_counter(
            REFUSED.into(),
            None,
            "Requests refused for their constraint: for a keyword of its schema, anything else \
             in its text, the time that it takes, too many others, or the model."
                .into(),
        );
        let compiles = |kind: ConstraintKind| {
            let key = Key::from_parts(COMPILES, vec![Label::new("kind", label(kind))]);
            recorder.register_histogram(&key, &METADATA)
        };
        let refused = |reason: &'static str| {
            let key = Key::from_parts(REFUSED, vec![Label::new("reason", reason)]);
            recorder.register_counter(&key, &METADATA)
        };
        Self {
            json_schemas: compiles(ConstraintKind::JsonSchema),
            regexes: compiles(ConstraintKind::Regex),
            grammars: compiles(ConstraintKind::Lark),
            choices: compiles(ConstraintKind::Choice),
            structural_tags: compiles(ConstraintKind::StructuralTag),
            budgets: compiles(ConstraintKind::Anything),
            hits: recorder.register_counter(&Key::from_static_name(HITS), &METADATA),
            keyword: refused("keyword"),
            text: refused("text"),
            slow: refused("slow"),
            busy: refused("busy"),
            model: refused("model"),
        }
    }

    /// Counts a constraint that was checked. Its refusal is counted by [`Self::refused`], for the
    /// reason that the client reads.
    pub fn checked(&self, kind: ConstraintKind, checked: &Checked) {
        match (checked.compiled, &checked.result) {
            (None, Ok(())) => self.hits.increment(1),
            (None, Err(_)) => {}
            (Some(took), _) => self.times(kind).record(took),
        }
    }

    /// Counts a request that is refused for its constraint.
    pub fn refused(&self, reason: Refusal) {
        let counter = match reason {
            Refusal::Keyword => &self.keyword,
            Refusal::Text => &self.text,
            Refusal::Slow => &self.slow,
            Refusal::Busy => &self.busy,
            Refusal::Model => &self.model,
        };
        counter.increment(1);
    }

    fn times(&self, kind: ConstraintKind) -> &Histogram {
        match kind {
            ConstraintKind::JsonSchema => &self.json_schemas,
            ConstraintKind::Regex => &self.regexes,
            ConstraintKind::Lark => &self.grammars,
            ConstraintKind::Choice => &self.choices,
            ConstraintKind::StructuralTag => &self.structural_tags,
            ConstraintKind::Anything => &self.budgets,
        }
    }
}

/// Returns the label of a language, as requests name it.
pub fn label(kind: ConstraintKind) -> &'static str {
    match kind {
        ConstraintKind::JsonSchema => "json_schema",
        ConstraintKind::Regex => "regex",
        ConstraintKind::Lark => "grammar",
        ConstraintKind::Choice => "choice",
        ConstraintKind::StructuralTag => "structural_tag",
        ConstraintKind::Anything => "budget",
    }
}
