//! The schema that answers are held to.

use std::{path::Path, sync::Arc};

use lockstep_constraint::{Cancel, Compiler, Vocabulary};
use lockstep_text::Tokenizer;
use lockstep_types::{
    ConfigError,
    constraint::{Constraint, ConstraintKind},
};

/// Reads a schema, and checks that it can be followed with the model's vocabulary.
///
/// # Errors
/// A file that can't be read, or what its schema asks for in vain.
pub fn read(file: &Path, model: &Path) -> anyhow::Result<Arc<Constraint>> {
    let wrong = |why: String| ConfigError::file("--json-schema", file, why);
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let constraint = Constraint::new(ConstraintKind::JsonSchema, text);
    let config = lockstep_model_folder::load(model)?;
    let tokenizer = Tokenizer::load(model)?;
    let vocabulary = Vocabulary::new(&tokenizer, config.vocab_size, &config.eos_token_ids);
    let compiler = Compiler::new(Arc::new(vocabulary?));
    let checked = compiler.check(&constraint, &Cancel::default());
    checked.map_err(|error| wrong(error.to_string()))?;
    Ok(Arc::new(constraint))
}
