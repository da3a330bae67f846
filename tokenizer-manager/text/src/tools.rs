//! Tool calls, as families of models write them: a file per format.
//!
//! A parser reads characters and marks, and writes text of the answer, begins of calls and pieces
//! of their arguments. It holds back only what is undecided, at most [`MOST_HELD`] bytes. What
//! turns out to be no call is text of the answer.

mod deepseek;
mod deepseek_dsml;
mod gemma4;
mod glm45;
mod gpt_oss;
mod grammar;
mod hermes;
mod kimi_k2;
mod llama3_function;
mod llama3_json;
mod minimax_m2;
mod mistral;
mod muted;
mod parts;
mod pythonic;
mod qwen3_coder;
mod schema;
#[cfg(test)]
pub(crate) mod tests;
mod xml;

use std::fmt::Debug;
use std::sync::Arc;

pub use gpt_oss::channel_answer;
pub use grammar::{Beside, CallableTool, GRAMMAR_BYTES, GrammarError, WantedCalls};
pub(crate) use muted::Muted;
pub(crate) use parts::channels;
pub use schema::ToolSchemas;
pub use xml::{XmlArguments, XmlStyle};

use grammar::{Lark, Unit};

use crate::marks::Symbol;
use crate::writer::Writer;

/// Maximum bytes that a parser holds back before it takes them for text.
pub(crate) const MOST_HELD: usize = 64 << 10;

/// A format of calls.
#[derive(Debug)]
pub struct ToolFormat {
    /// Names of the format, the first of them SGLang's; the others are vLLM's.
    pub names: &'static [&'static str],
    /// Marks of the format.
    pub(crate) marks: &'static [&'static str],
    /// Number of marks, from the first on, that open a call.
    pub(crate) openings: usize,
    /// Returns true if this is the format of a chat template.
    pub(crate) is_format_of: fn(&str) -> bool,
    /// Form of the calls' ids.
    pub ids: CallIds,
    /// Marks with which something begins that the parser may take for a call. Text beside
    /// constrained calls has none of them. Empty = calls have no mark.
    pub(crate) begins: &'static [usize],
    /// Writes the grammar of one call, or of one block of calls, which may have several.
    pub(crate) grammar: fn(&mut Lark<'_>, bool) -> Result<Unit, GrammarError>,
    /// Writes the grammar of a whole output; `None` = calls stand within text, or alone.
    pub(crate) whole: Option<WholeGrammar>,
    /// Makes a parser of one output.
    pub(crate) parser: fn(Arc<ToolSchemas>) -> Box<dyn CallParser>,
}

/// Writer of the grammar of a whole output.
pub(crate) type WholeGrammar = fn(&mut Lark<'_>, &WantedCalls<'_>) -> Result<String, GrammarError>;

/// Forms of the ids of calls. Clients send an id back, and templates may check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallIds {
    /// OpenAI's form, `call_` and a random text.
    Long,
    /// Nine letters and digits, as Mistral's templates want them.
    Nine,
}

/// All formats. The first one that recognises a chat template is the template's.
pub const TOOL_FORMATS: &[&ToolFormat] = &[
    &gpt_oss::FORMAT,
    &minimax_m2::FORMAT,
    &kimi_k2::FORMAT,
    &deepseek_dsml::V32,
    &deepseek_dsml::V4,
    &deepseek::V3,
    &deepseek::V31,
    &glm45::FORMAT,
    &qwen3_coder::FORMAT,
    &gemma4::FORMAT,
    &llama3_function::FORMAT,
    &hermes::FORMAT,
    &mistral::FORMAT,
    &pythonic::FORMAT,
    &llama3_json::FORMAT,
];

/// Returns the format of outputs that are messages of channels.
pub(crate) fn channel_format() -> &'static ToolFormat {
    &gpt_oss::FORMAT
}

impl ToolFormat {
    /// Returns the format of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        let mut formats = TOOL_FORMATS.iter();
        formats.find(|format| format.names.contains(&name)).copied()
    }

    /// Returns the marks of the format, each of which may be a token.
    #[must_use]
    pub fn marks(&self) -> &'static [&'static str] {
        self.marks
    }

    /// Returns the marks that open a call.
    #[must_use]
    pub fn openings(&self) -> &'static [&'static str] {
        &self.marks[..self.openings]
    }

    /// Returns the format in which a chat template asks for calls.
    #[must_use]
    pub fn of_template(template: &str) -> Option<&'static Self> {
        let mut formats = TOOL_FORMATS.iter();
        formats
            .find(|format| (format.is_format_of)(template))
            .copied()
    }
}

/// A parser of the calls in one output.
pub(crate) trait CallParser: Debug + Send + Sync {
    /// Reads a symbol.
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>);

    /// Ends the output. `cut` says that the model would have gone on: what is open then stays
    /// open, so that nobody takes it for whole.
    fn end(&mut self, cut: bool, out: &mut Writer<'_>);

    /// True inside a call that clients have heard of.
    fn is_open(&self) -> bool;

    /// Number of characters that are held back and may turn out to be text.
    fn held(&self) -> usize;

    /// True inside of reasoning, where the format tells it from the text.
    fn is_thinking(&self) -> bool {
        false
    }

    /// True where the output is neither a call nor text of the answer.
    fn is_apart(&self) -> bool {
        false
    }
}
