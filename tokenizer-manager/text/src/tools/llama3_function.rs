//! Llama 3.1 with tools of its own: `<function=NAME>{…}</function>`.
//!
//! The marks are mere text, so only one that names a tool of the request begins a call.

use std::sync::Arc;

use super::grammar::{GrammarError, Lark, Unit, literal};
use super::parts::held::Held;
use super::parts::raw_arguments::{Place, RawArguments};
use super::{CallIds, CallParser, ToolFormat, ToolSchemas};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["llama3_function"],
    marks: &["<function=", "</function>"],
    openings: 1,
    is_format_of: |template| {
        template.contains("<function=") && template.contains("<|start_header_id|>")
    },
    ids: CallIds::Long,
    begins: &[OPEN],
    grammar,
    whole: None,
    parser: |tools| Box::new(Llama3Function::new(tools)),
};

const OPEN: usize = 0;
const CLOSE: usize = 1;

/// Maximum bytes of a name.
const MOST_NAME: usize = 256;

fn grammar(lark: &mut Lark<'_>, _: bool) -> Result<Unit, GrammarError> {
    let close = lark.mark(CLOSE);
    let call = lark.each_tool(|lark, tool| {
        let name = literal(&format!("{}>", lark.tools[tool].name));
        Ok(format!("{name} {} {close}", lark.arguments(tool)))
    })?;
    Ok(Unit {
        opening: Some(OPEN),
        rest: call,
        between: Some(String::new()),
    })
}

#[derive(Debug)]
struct Llama3Function {
    tools: Arc<ToolSchemas>,
    state: State,
    held: Held,
    name: String,
    arguments: RawArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Name,
    Arguments,
    /// Behind the arguments, where the closing mark may be missing.
    Behind,
}

impl Llama3Function {
    fn new(tools: Arc<ToolSchemas>) -> Self {
        Self {
            tools,
            state: State::Text,
            held: Held::default(),
            name: String::new(),
            arguments: RawArguments::default(),
        }
    }

    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => out.char(c),
            Symbol::Mark(mark) if mark.index == OPEN => {
                self.held.push(symbol);
                self.name.clear();
                self.state = State::Name;
            }
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn name(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('>') if self.tools.has(self.name.trim()) => {
                self.held.clear();
                out.call(self.name.trim(), None);
                self.arguments = RawArguments::default();
                self.state = State::Arguments;
            }
            Symbol::Char(c) if c != '>' && c != '\n' && self.name.len() < MOST_NAME => {
                self.name.push(c);
                self.held.push(symbol);
            }
            _ => {
                self.held.release(out);
                self.state = State::Text;
                self.text(symbol, out);
            }
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Mark(mark) if mark.index == CLOSE => self.state = State::Text,
            _ => {
                self.state = State::Text;
                self.text(symbol, out);
            }
        }
    }
}

impl CallParser for Llama3Function {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Text => self.text(symbol, out),
            State::Name => self.name(symbol, out),
            State::Arguments => match self.arguments.read(symbol, out) {
                Place::Inside => {}
                Place::Last => self.state = State::Behind,
                Place::Behind => {
                    self.state = State::Behind;
                    self.behind(symbol, out);
                }
            },
            State::Behind => self.behind(symbol, out),
        }
    }

    fn end(&mut self, cut: bool, out: &mut Writer<'_>) {
        self.held.release(out);
        if self.state == State::Arguments && !cut {
            self.arguments.missing(out);
        }
    }

    fn is_open(&self) -> bool {
        self.state == State::Arguments
    }

    fn held(&self) -> usize {
        self.held.chars()
    }
}
