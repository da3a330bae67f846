//! GLM-4.5 to GLM-5: `<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>`,
//! with or without newlines between the marks.

use std::sync::Arc;

use super::grammar::{GrammarError, Lark, RawStyle, Unit, keys, literal};
use super::parts::held::Held;
use super::parts::typed::TypedArguments;
use super::{CallIds, CallParser, ToolFormat, ToolSchemas};
use crate::marks::{Mark, Symbol};
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["glm45", "glm47", "glm"],
    marks: &[
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    openings: 1,
    is_format_of: |template| template.contains("<arg_key>"),
    ids: CallIds::Long,
    begins: &[OPEN],
    grammar,
    whole: None,
    parser: |tools| Box::new(Glm45::new(tools)),
};

const OPEN: usize = 0;
const CLOSE: usize = 1;
const KEY: usize = 2;
const KEY_END: usize = 3;
const VALUE: usize = 4;
const VALUE_END: usize = 5;

/// Keys and values, each behind a line end that GLM-4.7 and later leave out.
pub(super) const STYLE: RawStyle = RawStyle {
    head: |lark, key| {
        let [begin, end, value] = [KEY, KEY_END, VALUE].map(|at| lark.mark(at));
        format!("{begin} {key} {end} {NEWLINE} {value}")
    },
    close: VALUE_END,
    behind: NEWLINE,
    without: &[VALUE_END, CLOSE],
    around: "",
    trims: false,
    told: None,
};

const NEWLINE: &str = "\"\\n\"?";

/// Maximum bytes of a tool's name or of a key.
const MOST_NAME: usize = 256;

fn grammar(lark: &mut Lark<'_>, _: bool) -> Result<Unit, GrammarError> {
    let call = lark.each_tool(|lark, tool| {
        let name = literal(lark.tools[tool].name);
        Ok(format!("{name} {NEWLINE} {}", keys(lark, tool, &STYLE)?))
    })?;
    Ok(Unit {
        opening: Some(OPEN),
        rest: format!("{call} {}", lark.mark(CLOSE)),
        between: Some(NEWLINE.to_owned()),
    })
}

#[derive(Debug)]
struct Glm45 {
    tools: Arc<ToolSchemas>,
    state: State,
    held: Held,
    name: String,
    key: String,
    arguments: TypedArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Name,
    /// Between the marks of a call.
    Body,
    Key,
    Value,
}

impl Glm45 {
    fn new(tools: Arc<ToolSchemas>) -> Self {
        Self {
            tools,
            state: State::Text,
            held: Held::default(),
            name: String::new(),
            key: String::new(),
            arguments: TypedArguments::default(),
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
            Symbol::Char(c) if c.is_whitespace() && self.name.is_empty() => self.held.push(symbol),
            Symbol::Char('\n') => return self.begin(out),
            // Blanks may stand before a newline.
            Symbol::Char(c) if is_name(c) && !self.name.ends_with(' ') || c == ' ' => {
                self.name.push(c);
                self.held.push(symbol);
            }
            Symbol::Char(_) => {
                self.release(out);
                return self.text(symbol, out);
            }
            Symbol::Mark(mark) if !self.name.is_empty() && [CLOSE, KEY].contains(&mark.index) => {
                self.begin(out);
                return self.body(mark, out);
            }
            Symbol::Mark(_) => {
                self.release(out);
                return self.text(symbol, out);
            }
        }
        if self.name.len() > MOST_NAME || self.held.is_full() {
            self.release(out);
        }
    }

    fn begin(&mut self, out: &mut Writer<'_>) {
        self.held.clear();
        self.name.truncate(self.name.trim_end().len());
        out.call(&self.name, None);
        self.arguments.begin(out);
        self.state = State::Body;
    }

    fn body(&mut self, mark: Mark, out: &mut Writer<'_>) {
        match mark.index {
            KEY => {
                self.key.clear();
                self.state = State::Key;
            }
            VALUE => {
                let key = self.key.trim();
                let kinds = self.tools.kinds(&self.name, key);
                self.arguments.key(key, (kinds, self.tools.hold()), out);
                self.state = State::Value;
            }
            OPEN | CLOSE => {
                self.arguments.end(out);
                self.state = State::Text;
                if mark.index == OPEN {
                    self.text(Symbol::Mark(mark), out);
                }
            }
            _ => {}
        }
    }

    fn key(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if self.key.len() < MOST_NAME => self.key.push(c),
            Symbol::Char(_) => {}
            Symbol::Mark(mark) => {
                self.state = State::Body;
                if mark.index != KEY_END {
                    self.body(mark, out);
                }
            }
        }
    }

    fn value(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => self.arguments.text(c.encode_utf8(&mut [0; 4]), out),
            Symbol::Mark(mark) if self.arguments.in_string() => {
                self.arguments.text(mark.text, out);
            }
            Symbol::Mark(mark) if mark.index == VALUE_END => {
                self.arguments.end_value(out);
                self.state = State::Body;
            }
            // A token that ends calls is never mere text, so the model has forgotten a mark.
            Symbol::Mark(mark) if mark.index == CLOSE && mark.id.is_some() => {
                self.arguments.end_value(out);
                self.body(mark, out);
            }
            Symbol::Mark(mark) => self.arguments.text(mark.text, out),
        }
    }

    fn release(&mut self, out: &mut Writer<'_>) {
        self.held.release(out);
        self.state = State::Text;
    }
}

impl CallParser for Glm45 {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match (self.state, symbol) {
            (State::Text, _) => self.text(symbol, out),
            (State::Name, _) => self.name(symbol, out),
            (State::Body, Symbol::Mark(mark)) => self.body(mark, out),
            // Only white space belongs there.
            (State::Body, Symbol::Char(_)) => {}
            (State::Key, _) => self.key(symbol, out),
            (State::Value, _) => self.value(symbol, out),
        }
    }

    /// A value that has no closing mark stays open, so that nobody takes it for whole.
    fn end(&mut self, cut: bool, out: &mut Writer<'_>) {
        match self.state {
            State::Name => self.held.release(out),
            State::Body if cut => {}
            State::Body => self.arguments.end(out),
            State::Value => self.arguments.cut(out),
            State::Text | State::Key => {}
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Body | State::Key | State::Value)
    }

    fn held(&self) -> usize {
        self.held.chars()
    }
}

/// True for the characters of names that requests may give to tools.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.:/".contains(c)
}
