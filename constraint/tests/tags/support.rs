use std::{path::Path, sync::Arc, sync::LazyLock};

use lockstep_constraint::{Cancel, Compiler, ConstraintError, Matcher, Vocabulary};
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_text::{Tokenizer, TokenizerConfig};
use lockstep_types::constraint::{Constraint, ConstraintKind};
use serde_json::{Value, json};

/// Width of the logits.
pub const WIDTH: usize = 4100;
/// The demo model's end tokens.
pub const ENDS: [u32; 2] = [0, 2];

/// Special tokens that the demo model does not have.
pub const MARKS: [(&str, u32); 2] = [("<|call|>", 4096), ("<|end|>", 4097)];

pub static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
    let bytes = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    added.extend(MARKS.map(|(name, id)| {
        json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    }));
    let json = serde_json::to_vec(&json).unwrap();
    Tokenizer::from_json(&json, TokenizerConfig::default(), Path::new("t.json")).unwrap()
});

static COMPILER: LazyLock<Compiler> = LazyLock::new(|| {
    let vocabulary = Vocabulary::new(&TOKENIZER, WIDTH, &ENDS).unwrap();
    Compiler::new(Arc::new(vocabulary))
});

/// Returns a structural tag of XGrammar's form.
pub fn tag(format: &Value) -> Constraint {
    whole(&json!({"type": "structural_tag", "format": format}))
}

pub fn whole(tag: &Value) -> Constraint {
    Constraint::new(ConstraintKind::StructuralTag, tag.to_string())
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

/// Returns true if a constraint allows these tokens as a whole, and each when its turn comes.
pub fn accepts_tokens(constraint: &Constraint, tokens: &[u32]) -> bool {
    let mut matcher = matcher(constraint);
    for token in tokens {
        if !allows(matcher.allowed().unwrap(), *token) {
            return false;
        }
        matcher.take(*token).unwrap();
    }
    let fulfilled = matcher.is_fulfilled().unwrap();
    let allowed = matcher.allowed().unwrap();
    assert!(ENDS.iter().all(|end| allows(allowed, *end) == fulfilled));
    fulfilled
}

/// Returns true if a constraint allows a text, tokenized as the model would, and byte by byte.
pub fn accepts(constraint: &Constraint, text: &str) -> bool {
    let accepted = accepts_tokens(constraint, &TOKENIZER.encode(text, false).unwrap());
    let bytes: Vec<u32> = text.bytes().map(byte).collect();
    assert_eq!(accepts_tokens(constraint, &bytes), accepted, "{text:?}");
    accepted
}

/// Returns the token of a byte.
pub fn byte(byte: u8) -> u32 {
    static BYTES: LazyLock<Vec<Option<u32>>> = LazyLock::new(|| {
        let mut bytes = vec![None; 256];
        for id in (0..MARKS[0].1).filter(|id| !TOKENIZER.is_special(*id)) {
            if let Some([byte]) = TOKENIZER.token_bytes(id) {
                bytes[usize::from(*byte)] = Some(id);
            }
        }
        bytes
    });
    BYTES[usize::from(byte)].unwrap()
}
