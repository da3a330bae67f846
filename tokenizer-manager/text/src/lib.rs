//! Conversion between text and token ids: tokenizing, chat templates, incremental detokenizing,
//! stop strings.
//!
//! ```text
//! messages ──ChatTemplate──▶ prompt ──Tokenizer──▶ ids ──▶ (scheduler)
//! (scheduler) ──▶ ids ──IncrementalDetokenizer──▶ text ──StopMatcher──▶ what the client sees
//!                      └──────────────── OutputText ────────────────┘
//! ```
//!
//! Nothing here knows of HTTP, gRPC or other processes. Every type works on one request at a time
//! except [`Tokenizer`] and [`ChatTemplate`]. Both are immutable after loading, shared by `Arc`
//! and safe to use from any number of threads.

#![forbid(unsafe_code)]

mod chat;
mod detokenize;
mod output;
mod stop;
mod tokenizer;
mod utf8;

pub use chat::{
    ChatRequest, ChatTemplate, Clock, ContentFormat, LoadError, TemplateError, TemplateLimits,
    TemplateOptions,
};
pub use detokenize::IncrementalDetokenizer;
pub use output::{OutputOptions, OutputText, TokenText};
pub use stop::{StopError, StopMatch, StopMatcher};
pub use tokenizer::{
    EncodeError, NamedTemplate, SpecialTokens, Tokenizer, TokenizerConfig, TokenizerError,
};
