//! Conversion between text and token ids: tokenizing, chat templates, incremental detokenizing,
//! stop strings.
//!
//! ```text
//! messages ──ChatTemplate──▶ prompt ──Tokenizer──▶ ids ──▶ (scheduler)
//! (scheduler) ──▶ ids ──IncrementalDetokenizer──▶ text ──StopMatcher──▶ what the client sees
//!                      └──────────────── OutputText ────────────────┘
//! ```
//!
//! An [`AnswerParser`] tells reasoning and tool calls from the text of an answer.
//!
//! Nothing here knows of HTTP, gRPC or other processes. Every type works on one request at a time
//! except [`Tokenizer`] and [`ChatTemplate`]. Both are immutable after loading, shared by `Arc`
//! and safe to use from any number of threads.

#![forbid(unsafe_code)]

mod answer;
mod chat;
mod detokenize;
pub mod lark;
mod marks;
mod output;
mod reasoning;
mod stop;
mod tokenizer;
mod tools;
mod utf8;
mod writer;

pub use answer::{AUTO, AnswerFormat, AnswerOptions, AnswerParser, Calls, NONE, UnknownParser};
pub use chat::{
    ChatRequest, ChatTemplate, Clock, ContentFormat, LoadError, TemplateError, TemplateLimits,
    TemplateOptions,
};
pub use detokenize::IncrementalDetokenizer;
pub use output::{OutputOptions, OutputText, StopScope, TokenText};
pub use reasoning::{REASONING_FORMATS, ReasoningFormat, Turn};
pub use stop::{StopError, StopMatch, StopMatcher};
pub use tokenizer::{
    EncodeError, NamedTemplate, SpecialTokens, Tokenizer, TokenizerConfig, TokenizerError,
};
pub use tools::{
    Beside, CallIds, CallableTool, GRAMMAR_BYTES, GrammarError, TOOL_FORMATS, ToolFormat,
    ToolSchemas, WantedCalls, XmlArguments, XmlStyle, channel_answer,
};
pub use writer::Sink;
