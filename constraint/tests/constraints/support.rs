use std::{path::Path, sync::Arc, sync::LazyLock};

use lockstep_constraint::{Cancel, Compiler, ConstraintError, Matcher, Vocabulary};
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_text::Tokenizer;
use lockstep_types::constraint::{Constraint, ConstraintKind, Whitespace};
use serde_json::Value;

/// Width of the logits, a little more than the tokenizer has.
pub const WIDTH: usize = 4100;
/// The demo model's end tokens.
pub const ENDS: [u32; 2] = [0, 2];

pub static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
    Tokenizer::load(&folder).unwrap()
});

pub static COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::new(vocabulary()));

pub fn vocabulary() -> Arc<Vocabulary> {
    Arc::new(Vocabulary::new(&TOKENIZER, WIDTH, &ENDS).unwrap())
}

pub fn schema(schema: &Value) -> Constraint {
    Constraint::new(ConstraintKind::JsonSchema, schema.to_string())
}

pub fn compact(own: &Value) -> Constraint {
    Constraint {
        whitespace: Whitespace::Compact,
        ..schema(own)
    }
}

pub fn regex(text: &str) -> Constraint {
    Constraint::new(ConstraintKind::Regex, text)
}

pub fn lark(text: impl Into<Arc<str>>) -> Constraint {
    Constraint::new(ConstraintKind::Lark, text)
}

pub fn check(constraint: &Constraint) -> Result<(), ConstraintError> {
    COMPILER.check(constraint, &Cancel::default())
}

/// Returns the matcher of a constraint that is not refused.
pub fn matcher(constraint: &Constraint) -> Matcher {
    if let Err(error) = check(constraint) {
        panic!("{constraint:?}: {error}");
    }
    COMPILER.matcher(constraint).unwrap()
}

/// Returns true if the constraint allows a text as a whole, and every token of it when its turn
/// comes.
pub fn accepts(constraint: &Constraint, text: &str) -> bool {
    let mut matcher = matcher(constraint);
    for token in TOKENIZER.encode(text, false).unwrap() {
        let allowed = allows(matcher.allowed().unwrap(), token);
        assert_eq!(matcher.take(token).is_ok(), allowed, "{text}");
        if !allowed {
            return false;
        }
    }
    let fulfilled = matcher.is_fulfilled().unwrap();
    let allowed = matcher.allowed().unwrap();
    assert!(ENDS.iter().all(|end| allows(allowed, *end) == fulfilled));
    fulfilled
}
