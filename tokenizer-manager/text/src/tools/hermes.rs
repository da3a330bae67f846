//! Hermes 2 and 3, Qwen 2.5 and Qwen3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use std::sync::Arc;

use super::grammar::{GrammarError, Lark, Unit, call_object, literal};
use super::parts::call_object::{CallObject, Progress};
use super::{CallIds, CallParser, ToolFormat, ToolSchemas};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["qwen25", "qwen", "hermes"],
    marks: &["<tool_call>", "</tool_call>"],
    openings: 1,
    is_format_of: |template| template.contains("<tool_call>"),
    ids: CallIds::Long,
    begins: &[OPEN],
    grammar,
    whole: None,
    parser,
};

const OPEN: usize = 0;
const CLOSE: usize = 1;

fn grammar(lark: &mut Lark<'_>, _: bool) -> Result<Unit, GrammarError> {
    let call = lark.each_tool(|lark, tool| Ok(call_object(lark, tool, "arguments")))?;
    Ok(Unit {
        opening: Some(OPEN),
        rest: format!("\"\\n\" {call} \"\\n\" {}", lark.mark(CLOSE)),
        between: Some(literal("\n")),
    })
}

fn parser(_: Arc<ToolSchemas>) -> Box<dyn CallParser> {
    Box::new(Hermes::Text)
}

#[derive(Debug)]
enum Hermes {
    Text,
    Call(CallObject),
    /// Behind a call, where the closing mark may be missing.
    Behind,
}

impl CallParser for Hermes {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self {
            Self::Text => self.text(symbol, out),
            Self::Call(call) => match call.read(symbol, None, out) {
                Progress::More => {}
                Progress::Done => *self = Self::Behind,
                Progress::Failed if call.has_begun() => self.behind(symbol, out),
                Progress::Failed => {
                    call.release(out);
                    self.text(symbol, out);
                }
            },
            Self::Behind => self.behind(symbol, out),
        }
    }

    fn end(&mut self, _: bool, out: &mut Writer<'_>) {
        if let Self::Call(call) = self {
            call.release(out);
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, Self::Call(call) if call.has_begun())
    }

    fn held(&self) -> usize {
        match self {
            Self::Call(call) => call.held(),
            Self::Text | Self::Behind => 0,
        }
    }
}

impl Hermes {
    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        *self = Self::Text;
        match symbol {
            Symbol::Char(c) => out.char(c),
            Symbol::Mark(mark) if mark.index == OPEN => {
                *self = Self::Call(CallObject::behind(symbol));
            }
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Mark(mark) if mark.index == CLOSE => *self = Self::Text,
            // Small models write one brace too many.
            Symbol::Char(c) if c.is_whitespace() || c == '}' => *self = Self::Behind,
            _ => self.text(symbol, out),
        }
    }
}
