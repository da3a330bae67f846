//! Structural tags, in SGLang's and vLLM's form of `structures` and `triggers` and in XGrammar's
//! form of a `format`, as Lark.
//!
//! Free text, that of `any_text` and of `triggered_tags`, contains no fixed text that may follow
//! it: no trigger, and neither the end of the tag around it nor the begin of what comes next. So
//! it ends where the first of them does, which is what a reader of the output finds. Free text and
//! the fixed text behind it are one terminal, since terminals are as long as they can be.

mod free;
mod keys;
mod literal;
mod parse;
mod regular;
mod rules;
mod tagged;
mod tree;
mod write;

use lockstep_types::constraint::Whitespace;

use crate::{ConstraintError, Vocabulary, bounds};

/// Returns a structural tag as Lark, for the tokens of a vocabulary.
///
/// # Errors
/// [`ConstraintError::Refused`], with the place in the structural tag.
pub(crate) fn lark(
    text: &str,
    whitespace: Whitespace,
    vocabulary: &Vocabulary,
) -> Result<String, ConstraintError> {
    let root = parse::parse(text)?;
    write::write(&root, whitespace, vocabulary)
}

/// A JSON schema inside a structural tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagSchema {
    /// Keys and places of lists that lead to it.
    pub path: Vec<String>,
    /// The schema.
    pub schema: String,
}

/// Returns the JSON schemas inside a structural tag, in their order.
///
/// # Errors
/// [`ConstraintError::Refused`] for a text that is no structural tag.
pub fn tag_schemas(text: &str) -> Result<Vec<TagSchema>, ConstraintError> {
    bounds::length(text)?;
    let mut found = Vec::new();
    parse::parse(text)?.each_schema(&mut |place, schema| {
        found.push(TagSchema {
            path: place.path().map(str::to_owned).collect(),
            schema: schema.to_string(),
        });
    });
    Ok(found)
}
