//! Structured output: grammars compiled from JSON schemas, regular expressions, lists of choices
//! and structural tags, and the tokens that they allow.
//!
//! ```text
//! Constraint ──bounds──▶ llguidance ──walk──▶ Compiled ──deep clone──▶ Matcher, one per request
//! Tokenizer ──▶ Vocabulary ──┘                (cached)                 tokens ⇄ masks
//! ```
//!
//! A mask is a function of constraint, vocabulary and tokens alone, never of the masks that
//! were asked for before. So an output does not show what was drafted for it. A [`Lookahead`] is
//! a second matcher, which turns forced text into drafts. The front compiles
//! a constraint to refuse it before it queues, the lead of the request to obey it.

#![forbid(unsafe_code)]

mod blanks;
mod bounds;
mod cache;
mod cancel;
mod checker;
mod compile;
mod error;
mod forced;
mod gbnf;
mod json;
mod lookahead;
mod mark;
mod marks;
mod matcher;
mod tags;
mod vocabulary;
mod walk;
mod watch;

pub use cache::Compiler;
pub use cancel::Cancel;
pub use checker::{Checked, Checker};
pub use compile::{check_schema, expression};
pub use error::ConstraintError;
pub use gbnf::lark;
pub use lookahead::Lookahead;
pub use matcher::{Computed, Matcher};
pub use tags::{TagSchema, tag_schemas};
pub use vocabulary::Vocabulary;
