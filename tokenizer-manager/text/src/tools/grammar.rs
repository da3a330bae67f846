//! Grammars of calls in llguidance's variant of Lark: the outputs that the parser of a format
//! reads as calls of a request's tools, and as nothing else.
//!
//! A mark that is one token is named by its number, since the parser knows it by that alone; any
//! other mark is spelled. Text beside calls contains no opening mark, so nothing is taken for a
//! call that the grammar did not write as one.

mod bare;
mod enumeration;
mod lark;
mod named;
mod raw;
mod schema;
mod values;

use serde_json::Value;

pub(super) use lark::{Lark, Unit, call_object};
pub(super) use named::{NamedStyle, named};
pub(super) use raw::{RawStyle, Told, keys, value};

pub(super) use crate::lark::literal;

use super::ToolFormat;
use crate::{lark::text_without, tokenizer::Tokenizer};

/// Most bytes of a grammar.
pub const GRAMMAR_BYTES: usize = 64 << 10;

/// A tool that the model may call.
#[derive(Debug, Clone, Copy)]
pub struct CallableTool<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// JSON Schema that the arguments are instances of; `None` = they are any object.
    pub schema: Option<&'a Value>,
    /// JSON Schema whose types of properties the parser knows, whether the arguments are held to it
    /// or not; `None` = those of `schema`.
    pub known: Option<&'a Value>,
    /// True if a schema that this format can't follow is an error. Otherwise the arguments are
    /// any object then.
    pub strict: bool,
}

/// Calls that a grammar allows.
#[derive(Debug, Clone, Copy)]
pub struct WantedCalls<'a> {
    /// Tools that may be called.
    pub tools: &'a [CallableTool<'a>],
    /// Rest of an output, which is no call.
    pub beside: Beside<'a>,
    /// True if an output may have several calls.
    pub several: bool,
}

/// Part of an output that is no call.
#[derive(Debug, Clone, Copy)]
pub enum Beside<'a> {
    /// Nothing: there is at least one call.
    Nothing,
    /// Text around calls, of which there may be none.
    Text,
    /// An answer instead of calls: this expression of Lark.
    Answer(&'a str),
}

/// Reason why a format has no grammar of some calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// Calls of the format have no mark that tells their begin from text.
    #[error("calls in this model's format '{0}' begin with no mark that tells them from text")]
    NoOpening(&'static str),
    /// The grammar would be longer than a constraint may be.
    #[error(
        "calls of these tools take a grammar of more than {GRAMMAR_BYTES} bytes; send fewer or \
         shorter tools, or name those that may be called by 'tool_choice'"
    )]
    TooLong,
    /// The arguments of a tool can't be written.
    #[error("{problem}")]
    Arguments {
        /// Place of the tool in the list.
        tool: usize,
        /// Keyword of the schema at fault, if there is one.
        keyword: Option<String>,
        /// The fault and the remedy.
        problem: String,
    },
}

impl ToolFormat {
    /// Returns the grammar of these calls, as tokens of this tokenizer.
    ///
    /// # Errors
    /// [`GrammarError`] for what the format can't express.
    pub fn grammar(
        &self,
        tokenizer: &Tokenizer,
        wanted: &WantedCalls<'_>,
    ) -> Result<String, GrammarError> {
        let mut lark = Lark::new(self.marks, tokenizer, wanted.tools);
        if let Some(whole) = self.whole {
            let start = whole(&mut lark, wanted)?;
            return lark.finish(&start);
        }
        let unit = (self.grammar)(&mut lark, wanted.several)?;
        let no_opening = GrammarError::NoOpening(self.names[0]);
        let start = match wanted.beside {
            Beside::Nothing => calls(&lark, &unit, wanted.several),
            Beside::Answer(answer) => {
                unit.opening.ok_or(no_opening)?;
                let calls = calls(&lark, &unit, wanted.several);
                format!("({answer}) | {calls}")
            }
            Beside::Text => {
                let opening = unit.opening.ok_or(no_opening)?;
                let free = lark.terminal(&text_without(self.begins()));
                let lead = match lark.is_token(opening) {
                    true => format!("{free}? {}", lark.mark(opening)),
                    false => lark.terminal(&format!("{free}? {}", lark.mark(opening))),
                };
                let many = if wanted.several { '*' } else { '?' };
                format!("({lead} {}){many} {free}?", unit.rest)
            }
        };
        lark.finish(&start)
    }

    fn begins(&self) -> impl Iterator<Item = &'static str> {
        self.begins.iter().map(|at| self.marks[*at])
    }
}

/// Returns the expression of at least one call.
fn calls(lark: &Lark<'_>, unit: &Unit, several: bool) -> String {
    let opening = unit.opening.map_or(String::new(), |at| lark.mark(at));
    let one = format!("{opening} {}", unit.rest);
    match &unit.between {
        Some(between) if several => format!("{one} ({between} {one})*"),
        _ => one,
    }
}
