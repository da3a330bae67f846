//! One schema and its instances.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Instant,
};

use lockstep_constraint::{Cancel, Compiler, ConstraintError, Vocabulary};
use lockstep_sampling::TokenConstraint as _;
use lockstep_text::Tokenizer;
use lockstep_types::constraint::{Constraint, ConstraintKind, Whitespace};
use serde_json::Value;

use crate::{
    report::Report,
    text::{in_order, spaced},
};

/// Width of the demo model's logits.
pub const WIDTH: usize = 4096;

pub static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
    Tokenizer::load(&folder).expect("the demo model's")
});

pub static VOCABULARY: LazyLock<Arc<Vocabulary>> =
    LazyLock::new(|| Arc::new(Vocabulary::new(&TOKENIZER, WIDTH, &[0, 2]).expect("a vocabulary")));

/// A schema and its instances, with their validity.
pub struct Group<'a> {
    pub about: &'a str,
    pub schema: &'a Value,
    pub instances: Vec<(&'a Value, bool)>,
}

impl<'a> Group<'a> {
    /// Reads a group, which both suites write alike.
    pub fn of(data: &'a Value) -> Self {
        let tests = data["tests"].as_array().expect("tests");
        let valid = |test: &Value| test["valid"].as_bool().expect("a verdict");
        Self {
            about: data["description"].as_str().unwrap_or_default(),
            schema: &data["schema"],
            instances: tests
                .iter()
                .map(|test| (&test["data"], valid(test)))
                .collect(),
        }
    }
}

/// Compiles schemas and judges instances.
#[derive(Default)]
pub struct Judge {
    /// The schema, if it was not refused.
    pub compiled: Option<Constraint>,
}

impl Judge {
    pub fn group(&mut self, place: &str, group: &Group<'_>, report: &mut Report) {
        report.schemas += 1;
        let constraint = Constraint::new(ConstraintKind::JsonSchema, group.schema.to_string());
        let compiler = Compiler::new(VOCABULARY.clone());
        let begun = Instant::now();
        let checked = compiler.check(&constraint, &Cancel::default());
        report.checks.push(begun.elapsed());
        if let Err(error) = checked {
            report.refuse(&error);
            return;
        }
        let begun = Instant::now();
        // What a lead pays: another compiler, and no walk.
        let cold = Compiler::new(VOCABULARY.clone());
        assert!(cold.matcher(&constraint).is_ok(), "{place}");
        report.compiles.push(begun.elapsed());
        for (instance, valid) in &group.instances {
            let told = || format!("{place}: {}: {instance}", group.about);
            let found = verdicts(&compiler, &constraint, instance);
            match (valid, found) {
                (true, Ok([true, true, true])) => report.accepted_valid += 1,
                (true, found) => {
                    let ordered = in_order(group.schema, group.schema, instance);
                    let again = verdicts(&compiler, &constraint, &ordered);
                    match (again, found) {
                        (Ok([true, true, true]), _) => report.refused_order.push(told()),
                        (_, Err(error)) => report.refused_valid.push(told() + ": " + &error),
                        (_, Ok(found)) => {
                            report.refused_valid.push(format!("{}: {found:?}", told()));
                        }
                    }
                }
                (false, Ok([false, false, false]) | Err(_)) => report.refused_invalid += 1,
                (false, Ok(_)) => report.accepted_invalid.push(told()),
            }
        }
        self.compiled = Some(constraint);
    }
}

/// Returns which forms of an instance are accepted: with blanks and without where blanks may be,
/// and without where they may not.
fn verdicts(
    compiler: &Compiler,
    constraint: &Constraint,
    instance: &Value,
) -> Result<[bool; 3], String> {
    let compact = Constraint {
        whitespace: Whitespace::Compact,
        ..constraint.clone()
    };
    Ok([
        accepts(compiler, constraint, &spaced(instance))?,
        accepts(compiler, constraint, &instance.to_string())?,
        accepts(compiler, &compact, &instance.to_string())?,
    ])
}

fn accepts(compiler: &Compiler, constraint: &Constraint, text: &str) -> Result<bool, String> {
    let matcher = compiler.matcher(constraint);
    let mut matcher = matcher.map_err(|error: ConstraintError| error.to_string())?;
    for token in TOKENIZER.encode(text, false).expect("tokens") {
        if matcher.take(token).is_err() {
            // A matcher that fails is another thing than one that forbids.
            return matcher
                .failure()
                .map_or(Ok(false), |why| Err(why.to_owned()));
        }
    }
    matcher
        .is_fulfilled()
        .map_err(|_| "it fails at its end".to_owned())
}
