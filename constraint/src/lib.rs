//! Structured output: grammars compiled from JSON schemas, regular expressions and lists of
//! choices, and the tokens that they allow.
//!
//! ```text
//! Constraint ──bounds──▶ llguidance ──walk──▶ Compiled ──deep clone──▶ Matcher, one per request
//! Tokenizer ──▶ Vocabulary ──┘                (cached)                 tokens ⇄ masks
//! ```
//!
//! A mask is a function of constraint, vocabulary and tokens alone, never of the masks that
//! were asked for before. So an output does not show what was drafted for it. The front compiles
//! a constraint to refuse it before it queues, the lead of the request to obey it.

#![forbid(unsafe_code)]

mod blanks;
mod bounds;
mod cache;
mod cancel;
mod compile;
mod error;
mod gbnf;
mod mark;
mod matcher;
mod vocabulary;
mod walk;
mod watch;

pub use cache::Compiler;
pub use cancel::Cancel;
pub use compile::{check_schema, expression};
pub use error::ConstraintError;
pub use gbnf::lark;
pub use matcher::Matcher;
pub use vocabulary::Vocabulary;
